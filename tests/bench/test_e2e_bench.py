"""`mpkv bench e2e` without its engines: options, what vLLM is told, the load, the report."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpkv.errors import HelperFailed
from mpkv_cli.bench import e2e
from mpkv_cli.bench.against import VLLM_P2P
from mpkv_cli.bench.e2e_engines import MPKV, make_pair
from mpkv_cli.bench.e2e_load import Saturation
from mpkv_cli.bench.e2e_report import make_figures, make_result
from mpkv_cli.bench.e2e_samples import BUSY, IDLE, LOCAL_HIT, SATURATED, Sample
from mpkv_cli.bench.progress import Progress
from mpkv_cli.bench.result import Result
from mpkv_cli.demo.client import Client
from mpkv_cli.demo.measure import reusable_tokens
from mpkv_cli.main import main


def _samples(
    system: str, state: str, delays_s: list[float], ttfts_s: list[float], reused: int = 16_384
) -> list[Sample]:
    return [
        Sample(system, state, ttft_s, delay_s, delay_s / 4, delay_s / 2, 0.5, reused, True)
        for delay_s, ttft_s in zip(delays_s, ttfts_s, strict=True)
    ]


CANNED = [
    *_samples(MPKV, IDLE, [0.008, 0.009, 0.020], [0.10, 0.11, 0.20]),
    *_samples(MPKV, BUSY, [0.009, 0.010, 0.030], [0.11, 0.12, 0.30]),
    *_samples(MPKV, SATURATED, [0.010, 0.012, 0.014], [2.0, 2.1, 2.2]),
    *_samples(MPKV, LOCAL_HIT, [0.0, 0.0, 0.0], [1.9, 2.0, 2.5]),
    *_samples(VLLM_P2P, IDLE, [0.050, 0.054, 0.060], [0.2, 0.2, 0.2]),
    *_samples(VLLM_P2P, BUSY, [1.0, 1.5, 3.0], [1.2, 1.6, 3.0]),
    *_samples(VLLM_P2P, SATURATED, [2.0, 2.1, 2.2], [5.0, 5.5, 6.0]),
    *_samples(VLLM_P2P, LOCAL_HIT, [0.0, 0.0, 0.0], [2.1, 2.2, 2.3]),
]


# --- figures and report ----------------------------------------------------------------


def test_figures_are_medians_under_their_fixed_names() -> None:
    assert make_figures(CANNED) == pytest.approx(
        {
            "mpkv_idle_s": 0.009,
            "mpkv_idle_ttft_s": 0.11,
            "mpkv_busy_s": 0.010,
            "mpkv_busy_ttft_s": 0.12,
            "mpkv_saturated_s": 0.012,
            "saturated_ttft_s": 2.1,
            "saturated_local_hit_ttft_s": 2.0,
            "saturated_to_local_hit": 1.05,
            "vllm_idle_s": 0.054,
            "vllm_idle_ttft_s": 0.2,
            "vllm_busy_s": 1.5,
            "vllm_busy_ttft_s": 1.6,
            "vllm_saturated_s": 2.1,
            "vllm_saturated_ttft_s": 5.5,
            "vllm_saturated_local_hit_ttft_s": 2.2,
            "vllm_saturated_to_local_hit": 2.5,
            "vllm_to_mpkv_idle": 6.0,
            "vllm_to_mpkv_busy": 150.0,
        }
    )


def test_what_was_not_measured_has_no_figure() -> None:
    figures = make_figures([sample for sample in CANNED if sample.state == IDLE])
    assert set(figures) == {
        "mpkv_idle_s",
        "mpkv_idle_ttft_s",
        "vllm_idle_s",
        "vllm_idle_ttft_s",
        "vllm_to_mpkv_idle",
    }


def test_the_report_has_numbers_and_spread_of_both_systems() -> None:
    result = make_result(CANNED, {MPKV: [7.0, 8.0]}, {"repeats": 3})
    lines = [" ".join(row) for table in result.tables for row in table.rows]
    assert "mpkv: source busy 3 10.0 9.0-30.0" in lines
    assert "vLLM's P2P tier: source busy 3 1,500.0 1,000.0-3,000.0" in lines
    assert "mpkv: saturated, local 3 2,000.0 1,900.0-2,500.0" in lines
    assert "mpkv: idle, computed there 2 7,500.0 7,000.0-8,000.0" in lines
    # A quarter of the delay until the grant, another until the confirmation, and a half.
    assert "source busy: until the grant 3 2.5 2.2-7.5" in lines
    assert "source busy: until the scheduler saw it 3 5.0 4.5-15.0" in lines
    assert "mpkv: source busy 3 of 3 3 of 3 500 ms" in lines
    assert not any("did not reuse" in note for note in result.notes)
    assert json.loads(json.dumps(result.as_json({})))["figures"] == result.figures
    assert result.figures["mpkv_computed_ttft_s"] == 7.5
    assert [series.y for series in result.chart.series] == [
        pytest.approx((9, 10, 12)),
        pytest.approx((54, 1500, 2100)),
    ]


def test_requests_that_reused_too_little_are_counted_and_said() -> None:
    partly = _samples(MPKV, IDLE, [0.01], [1.0], reused=reusable_tokens() - 128)
    result = make_result([*CANNED, *partly], {}, {})
    assert result.notes[-1].startswith("1 of 25 requests did not reuse the whole prompt")
    (row,) = [row for row in result.tables[-1].rows if row[0] == "mpkv: source idle"]
    assert row[1:3] == ("3 of 4", "4 of 4")


# --- options ---------------------------------------------------------------------------


def _plan(monkeypatch: pytest.MonkeyPatch, *options: str) -> e2e.Plan:
    plans: list[e2e.Plan] = []

    def measure(plan: e2e.Plan, progress: Progress) -> Result:
        plans.append(plan)
        return make_result(CANNED, {}, {})

    monkeypatch.setattr(e2e, "measure", measure)
    finished = CliRunner().invoke(main, ["bench", "e2e", *options], catch_exceptions=False)
    assert finished.exit_code == 0, finished.output
    assert "Lookup delay on the destination" in finished.output
    (plan,) = plans
    return plan


def test_by_default_each_engine_is_busy_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(monkeypatch)
    assert plan.busy == ("none", "source", "destination")
    assert (plan.repeats, plan.against) == (5, VLLM_P2P)


def test_options_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(
        monkeypatch, "--busy", "source", "--repeats", "7", "--against", "nothing", "--output", "x"
    )
    assert plan.busy == ("source",)
    assert (plan.repeats, plan.against, plan.output) == (7, "nothing", Path("x"))


def test_a_quick_run_needs_one_pair_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(monkeypatch, "--quick")
    assert (plan.repeats, plan.against) == (1, "nothing")


@pytest.mark.parametrize(
    "options",
    [
        ("e2e", "--busy", "everything"),
        ("e2e", "--against", "nonsense"),
        ("lookup", "--against", "nonsense"),
    ],
)
def test_unknown_choices_are_refused(options: tuple[str, ...]) -> None:
    finished = CliRunner().invoke(main, ["bench", *options])
    assert finished.exit_code == 2
    assert "is not one of" in finished.output


# --- engines and load ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "connector", "spec", "port_key"),
    [
        (MPKV, "MpkvConnector", "CalmMpkvSpec", "mpkv"),
        (VLLM_P2P, "OffloadingConnector", "VllmP2pOnCpu", "secondary_tiers"),
    ],
)
def test_the_systems_differ_only_in_what_moves_the_cache(
    tmp_path: Path, system: str, connector: str, spec: str, port_key: str
) -> None:
    model = tmp_path / "tiny-llama"
    model.mkdir()
    (model / "config.json").touch()

    pair = make_pair(system, tmp_path, "64MiB", "")

    for engine, step in ((pair.a, "2048"), (pair.b, "512")):
        argv = list(engine.command.argv)
        config = json.loads(argv[argv.index("--kv-transfer-config") + 1])
        extra = config["kv_connector_extra_config"]
        assert config["kv_connector"] == connector
        assert extra["spec_name"] == spec
        assert extra["cpu_bytes_to_use"] == 2 << 30
        assert extra["sync_load_budget_bytes"] == 64 << 20
        assert argv[argv.index("--max-num-batched-tokens") + 1] == step
        assert str(engine.as_source.port) in json.dumps(extra[port_key])
        assert engine.command.env["PYTHONHASHSEED"] == "0"


def test_a_load_replaces_what_ends_and_aborts_the_rest() -> None:
    with _server(answer_s=0.05) as server:
        with Saturation(Client("127.0.0.1", server.server_port), "load", 2, 8) as load:
            assert 0 < load.period_s() < 5
            posted = server.posted
            load.wait_phase(0.5)
            assert server.posted > posted >= 2
        # The server takes what was sent last at its own pace.
        until = time.monotonic() + 10
        while server.posted < load._posted:
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.2)
        assert server.posted == load._posted
        prompts = {tuple(prompt) for prompt in server.prompts}
        assert len(prompts) == len(server.prompts)


def test_a_load_that_fails_says_so() -> None:
    with (
        _server(answer_s=0.0, status=500) as server,
        Saturation(Client("127.0.0.1", server.server_port), "load", 2, 8) as load,
        pytest.raises(HelperFailed, match="stands still: answered 500"),
    ):
        load.period_s()


class _Server(ThreadingHTTPServer):
    """Answers as vLLM does, after a while."""

    daemon_threads = True

    def __init__(self, answer_s: float, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer_s = answer_s
        self.status = status
        self.prompts: list[list[int]] = []

    @property
    def posted(self) -> int:
        return len(self.prompts)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["max_tokens"] == 1
        self.server.prompts.append(body["prompt"])
        time.sleep(self.server.answer_s)
        self._answer(self.server.status, {"choices": []})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _server(answer_s: float, status: int = 200) -> Iterator[_Server]:
    with _Server(answer_s, status) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
