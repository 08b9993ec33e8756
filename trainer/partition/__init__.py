"""One device's step -> the same step on several replicas: trace, label, convert, rebuild."""
