"""The catalogue, and that a fault needs a name, a form and a confirmation."""

import pytest
from ds4_kernels.c128a.faulty import MetadataFault
from ds4_kernels.faults import CATALOGUE, FaultForm, requested_fault

CONFIRMED = {"DS4_FAULT_CONFIRM": "yes-break-this-server"}
CPU = FaultForm.CPU_EMULATED


def test_no_fault_without_a_name():
    assert requested_fault({}, CPU) is None
    assert requested_fault({"DS4_FAULT": ""}, CPU) is None


@pytest.mark.parametrize("name", [n for n, f in CATALOGUE.items() if CPU in f.forms])
def test_named_and_confirmed(name):
    assert requested_fault({"DS4_FAULT": name, **CONFIRMED}, CPU) is CATALOGUE[name]


@pytest.mark.parametrize("confirmation", [{}, {"DS4_FAULT_CONFIRM": "yes"}, {"DS4_FAULT_CONFIRM": "1"}])
def test_a_fault_without_confirmation_is_refused(confirmation):
    with pytest.raises(
        ValueError, match=r"DS4_FAULT=packed-stride .*DS4_FAULT_CONFIRM=yes-break-this-server"
    ):
        requested_fault({"DS4_FAULT": "packed-stride", **confirmation}, CPU)


def test_a_confirmation_without_fault_is_refused():
    with pytest.raises(ValueError, match="names no fault"):
        requested_fault(CONFIRMED, CPU)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'packed'") as error:
        requested_fault({"DS4_FAULT": "packed", **CONFIRMED}, CPU)
    assert all(name in str(error.value) for name in CATALOGUE)


def test_a_fault_without_cpu_form_is_refused():
    with pytest.raises(ValueError, match="wrong-dcp-owner has no cpu-emulated form"):
        requested_fault({"DS4_FAULT": "wrong-dcp-owner", **CONFIRMED}, CPU)
    assert requested_fault({"DS4_FAULT": "wrong-dcp-owner", **CONFIRMED}, FaultForm.CONTRACT) is not None


def test_every_metadata_fault_can_be_put_into_a_builder():
    assert {name for name, fault in CATALOGUE.items() if fault.in_metadata} == {
        f.value for f in MetadataFault
    }


def test_every_fault_says_what_it_does_and_what_catches_it():
    for name, fault in CATALOGUE.items():
        assert fault.name == name
        assert fault.effect
        assert fault.caught_by
        assert fault.forms
