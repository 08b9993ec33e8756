"""Why a step, or a part of it, is not partitioned."""


class NotPartitioned(Exception):
    """The step has something that cannot be partitioned. The message says what."""


class NeedsCollective(Exception):
    """An operation in a branch or a loop needs a collective: its inputs are converted before it."""


class ListIsGathered(Exception):
    """A list of tensors would have to be gathered: what makes it has to be given whole tensors.

    Attributes:
        producer: the name of that operation.
    """

    def __init__(self, producer: str) -> None:
        super().__init__(producer)
        self.producer = producer
