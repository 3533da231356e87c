"""The comparison's own machinery: bench/compare.py without its peers, on a small batch."""

import sys
import tarfile
import zipfile

import pytest
import torch
from conftest import PACKAGE

sys.path.insert(0, str(PACKAGE / "bench"))
import compare  # noqa: E402
import peers  # noqa: E402
from inputs import make_inputs  # noqa: E402


@pytest.fixture
def inputs():
    return make_inputs(64, 24, 67, "cpu", torch.float32)


def test_peers_come_from_wheels_and_from_archives(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "peers").mkdir()
    with zipfile.ZipFile(tmp_path / "peers" / "a-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("peer_in_a_wheel.py", "")
        wheel.writestr("hidden.pth", "inside")
    (tmp_path / "peer_in_an_archive.py").write_text("")
    with tarfile.open(tmp_path / "peers" / "b.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "peer_in_an_archive.py", "inside/peer_in_an_archive.py")
    peers.unpack(str(tmp_path / "peers"), str(tmp_path / "unpacked"))
    import peer_in_a_wheel
    import peer_in_an_archive  # noqa: F401

    assert "site-packages" in peer_in_a_wheel.__file__


def test_the_package_and_the_c_call_are_measured_in_pairs(inputs, monkeypatch):
    monkeypatch.setattr(compare, "WARM_SECONDS", 0.0)
    found = compare.against_c(inputs, compare.Clock("cpu"), None, 9)
    assert found["same_gradient"] and len(found["all_ms"]["package"]) == len(found["all_ms"]["c"]) == 9
    low, middle, high = found["ratio_quartiles"]
    assert 0 < low <= middle == found["ratio"] <= high


def test_a_case_that_fails_is_left_out_and_says_why(inputs):
    def fails_later():
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("in a round\nin many words")
        inputs.draft.grad = torch.zeros_like(inputs.draft)
        return dict(loss=torch.zeros(()))

    def unknown(_):
        import no_such_peer  # noqa: F401

    calls = []
    chosen = [
        compare.Case("unknown", "ce", unknown),
        compare.Case("fails later", "ce", lambda _: fails_later),
        compare.our_case("onehead", "ce"),
    ]
    clock = compare.Clock("cpu")
    alive = compare.warm_all(chosen, inputs, clock, 8, deadline=float("inf"))
    assert [case.name for case in alive] == ["fails later", "onehead"]
    assert compare.take_turns(alive, inputs, clock, 3, deadline=float("inf")) == 3
    reports = [case.report for case in chosen]
    assert reports[0]["failed"] == "ModuleNotFoundError: No module named 'no_such_peer'"
    assert reports[1]["failed"] == "RuntimeError: in a round" and reports[1]["where"][-1].endswith("fails_later")
    assert "failed" not in reports[2] and len(chosen[2].ms) == 3 and reports[2]["gradient_error"] < 1e-5
