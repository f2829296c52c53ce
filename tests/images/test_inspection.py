"""What the contract suite is asked inside an image."""

import pytest

from qualify.images.inspection import contract_words

PLUGIN = ("ds4_kernels", "other")


@pytest.mark.parametrize(
    ("subject", "plugins", "policy", "words"),
    [
        ("reference", PLUGIN, "auto", ("--subject", "reference")),
        ("emulated", PLUGIN, "auto", ("--subject", "ds4_kernels.contracts.emulated:build")),
        ("vllm", PLUGIN, "auto", ("--subject", "vllm", "--stride-fix", "auto")),
        ("vllm", PLUGIN, "always", ("--subject", "vllm", "--stride-fix", "always")),
        # a server that does not put the fix in is tested without it
        ("vllm", PLUGIN, "off", ("--subject", "vllm")),
        ("vllm", ("other",), "auto", ("--subject", "vllm")),
    ],
)
def test_vllm_is_tested_as_it_would_be_served(subject, plugins, policy, words):
    assert contract_words(subject, plugins, policy) == words
