"""Records next to objects: one for each, as long as it lives, and none in the object."""

import gc

from unisono.compat.side_table import SideTable


class Owner:
    """Equal to every other one, and without a hash."""

    def __eq__(self, other):
        return True


def test_each_object_has_a_record_of_its_own_until_it_is_gone():
    table: SideTable[list[int]] = SideTable(list)
    first, second = Owner(), Owner()
    table.of(first).append(1)
    assert (table.of(first), table.of(second)) == ([1], [])
    assert table.of(first) is table.of(first) and not vars(first)
    del first
    gc.collect()
    assert len(table._records) == 1 and table.of(second) == []
