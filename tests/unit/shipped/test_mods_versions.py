"""Version ranges are compared according to PEP 440."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.shipped.mods.load import common_version


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (">=0.19,<0.20", ">=0.20,<0.24", None),
        (">=0.19,<=0.20", ">=0.20,<0.24", "0.20"),
        ("==0.20.*", ">=0.20.5,<0.22", "0.20.5"),
        ("~=0.20.2", ">=0.20.9", "0.20.9"),
        ("!=0.32.0", "==0.32.0", None),
        ("<0.20", ">0.19", "0.19.0.0.1"),
        ("<=0.20", ">0.20", None),
        ("==1.0.post1", ">1.0", None),
        ("===0.20.2", "==0.20.2", "0.20.2"),
    ],
)
def test_the_lowest_common_version_is_found(one: str, other: str, common: str | None) -> None:
    expected = None if common is None else Version(common)
    assert common_version(one, other) == expected
    assert common_version(other, one) == expected


@pytest.mark.parametrize("text", [">=2,<1", "<1,>1", "==1.0,!=1.0", "==1.*,>=2", ">1,<1.0", "===nothing"])
def test_an_empty_range_has_no_version(text: str) -> None:
    assert common_version(text) is None


VERSIONS = st.builds(
    lambda numbers, suffix: ".".join(map(str, numbers)) + suffix,
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(["", "", "", ".dev0", "rc1", ".post1"]),
)
SPECIFIERS = st.lists(
    st.builds(str.__add__, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), VERSIONS),
    min_size=1,
    max_size=3,
).map(",".join)


@given(SPECIFIERS, SPECIFIERS, VERSIONS)
def test_no_version_lies_in_ranges_without_a_common_version(one: str, other: str, version: str) -> None:
    found = common_version(one, other)
    sets = [SpecifierSet(one), SpecifierSet(other)]
    if found is not None:
        assert all(specifiers.contains(found, prereleases=True) for specifiers in sets)
    elif Version(version).pre is None:
        assert not all(specifiers.contains(version, prereleases=True) for specifiers in sets)
