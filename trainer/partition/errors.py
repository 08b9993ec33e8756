"""Errors for steps, or parts of steps, that are not partitioned."""


class NotPartitioned(Exception):
    """The step cannot be partitioned. The message gives the reason."""


class NeedsCollective(Exception):
    """An operation in a branch or a loop needs a collective: its inputs are converted before the branch or loop."""


class ListIsGathered(Exception):
    """A list of tensors would have to be gathered: its producer must get whole tensors.

    Attributes:
        producer: the name of that operation.
    """

    def __init__(self, producer: str) -> None:
        super().__init__(producer)
        self.producer = producer
