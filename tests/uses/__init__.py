"""Tables of uses, wrong and right: what each calls, and what an error must say."""
