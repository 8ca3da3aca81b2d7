"""`smg server`: what it starts, what it shows, and that it leaves nothing behind."""

import os
import signal
import socket

import pytest

from sglang_router import local_net
from sglang_router.launch_server import StopSignal, main, split_router_flags
from tests.unit.sglang_router.stage import Actor, Stage, free_port


def started(stage: Stage, *flags: str, **env: str) -> list[Actor]:
    """One worker and a gateway, ready: [engine, gateway, scheduler]."""
    stage.run("--port", str(free_port()), *flags, **env)
    cast = stage.cast(3)
    for actor in cast[:2]:
        actor.tell("go")
    stage.output_until_ready()
    return cast


def test_router_flags_are_split_off_with_their_values() -> None:
    argv = ["--model-path", "m", "--router-policy", "random", "--dp-size", "2", "--router-log-json"]
    assert split_router_flags(argv) == (
        ["--policy", "random", "--log-json"],
        ["--model-path", "m", "--dp-size", "2"],
    )


def test_each_child_gets_its_flags_and_its_share_of_the_cores(stage: Stage) -> None:
    port = str(free_port())
    stage.run(
        *("--port", port, "--dp-size", "2", "--model-path", "demo", "--max-running-requests", "8"),
        *("--router-policy", "round_robin", "--router-retry-max-retries=2"),
    )
    first, second, gateway, *_ = stage.cast(5)
    engine_flags = [list(actor.introduction["argv"]) for actor in (first, second)]
    ports = {flags.pop() for flags in engine_flags}
    expected = ["--model-path", "demo", "--max-running-requests", "8"]
    expected += ["--grpc-mode", "--host", "127.0.0.1", "--port"]
    assert engine_flags == [expected, expected]
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert [first.introduction["omp"], second.introduction["omp"]] == [threads, threads]
    flags = list(gateway.introduction["argv"])
    assert flags[:4] == ["--host", "127.0.0.1", "--port", port]
    assert flags[6:10] == ["--policy", "round_robin", "--retry-max-retries=2", "--worker-urls"]
    assert set(flags[10:]) == {f"grpc://127.0.0.1:{port}" for port in ports}


def test_the_admin_key_reaches_the_gateway_and_no_command_line(stage: Stage) -> None:
    engine, gateway, _ = started(stage, "--admin-api-key", "secret-2")
    assert gateway.introduction["admin_key"] == "secret-2"
    argv = [*list(engine.introduction["argv"]), *list(gateway.introduction["argv"])]
    assert not any("secret-2" in word for word in argv)


def test_gateway_and_workers_send_their_spans_to_one_collector(stage: Stage) -> None:
    flags = ["--enable-trace", "--otlp-traces-endpoint", "otel:4317"]
    engine, gateway, _ = started(stage, "--model-path", "demo", *flags)
    for actor in (engine, gateway):
        argv = " ".join(actor.introduction["argv"])
        assert " ".join(flags) in argv


def test_a_choice_of_threads_is_left_alone(stage: Stage) -> None:
    engine, _, _ = started(stage, OMP_NUM_THREADS="7")
    assert engine.introduction["omp"] == "7"


def test_one_ready_block_names_url_model_workers_and_a_curl(stage: Stage) -> None:
    port = str(free_port())
    process = stage.run("--port", port, "--api-key", "secret-1")
    engine, gateway, _ = stage.cast(3)
    gateway.tell("go")
    block = stage.output_until_ready()
    assert f"http://127.0.0.1:{port} serves fake-model with 1 worker (grpc://127.0.0.1:" in block
    assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in block
    assert '"model": "fake-model"' in block
    process.terminate()
    code, errors = stage.finish()
    assert code == 0
    assert "secret-1" not in block + errors + str(gateway.introduction["argv"])
    assert process.stdout is not None and process.stdout.read() == ""


def test_lines_of_workers_are_shown_under_their_names(stage: Stage) -> None:
    process = stage.run("--port", str(free_port()), "--dp-size", "2")
    for actor in stage.cast(5)[:3]:
        actor.tell("go")
    stage.output_until_ready()
    process.terminate()
    _, errors = stage.finish()
    lines = errors.splitlines()
    for worker in ("worker 0", "worker 1"):
        assert f"[{worker}] loading weights" in lines
        assert f"[{worker}] warming up" in lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_the_gateway_and_then_ends_the_workers(
    stage: Stage, number: signal.Signals
) -> None:
    engine, gateway, scheduler = started(stage)
    os.kill(stage.process.pid, number)
    assert stage.finish()[0] == 0
    *_, drained = gateway.events_until_death()
    *_, asked = engine.events_until_death()
    assert drained["event"] == "drained" and asked["event"] == "term"
    assert drained["time"] < asked["time"]
    assert scheduler.events_until_death() == []


def test_a_signal_before_ready_ends_all(stage: Stage) -> None:
    process = stage.run("--port", str(free_port()))
    cast = stage.cast(3)
    process.terminate()
    assert stage.finish()[0] == 0
    for actor in cast:
        actor.events_until_death()


def test_a_second_signal_does_not_wait_for_the_drain(stage: Stage) -> None:
    cast = started(stage, FAKE_GATEWAY_DRAIN="stuck")
    stage.process.terminate()
    assert b"term" in cast[1].connection.recv(256)
    stage.process.terminate()
    assert stage.finish()[0] == 0
    for actor in cast:
        actor.events_until_death()


def test_what_hangs_is_killed_after_the_grace(stage: Stage) -> None:
    cast = started(stage, "--shutdown-grace-period-secs", "1", FAKE_GATEWAY_DRAIN="stuck")
    stage.process.terminate()
    assert stage.finish()[0] == 0
    for actor in cast:
        actor.events_until_death()


def test_killing_the_parent_leaves_nothing(stage: Stage) -> None:
    cast = started(stage)
    stage.process.kill()
    for actor in cast:
        actor.events_until_death()


def test_a_worker_that_dies_at_start_ends_all_and_says_why(stage: Stage) -> None:
    stage.run("--port", str(free_port()), "--dp-size", "2")
    cast = stage.cast(5)
    cast[0].tell("die")
    code, errors = stage.finish()
    assert code == 1
    assert "RuntimeError: out of memory" in errors
    assert "ended with exit code 3 before the server was ready" in errors.splitlines()[-1]
    for actor in cast:
        actor.events_until_death()


def test_the_server_outlives_one_worker_and_ends_with_the_last(stage: Stage) -> None:
    stage.run("--port", str(free_port()), "--dp-size", "2")
    cast = stage.cast(5)
    for actor in cast[:3]:
        actor.tell("go")
    stage.output_until_ready()
    first, second = cast[:2]
    os.kill(first.pid, signal.SIGKILL)
    stage.wait_for_error("1 worker left")
    assert stage.process.poll() is None
    os.kill(second.pid, signal.SIGKILL)
    code, errors = stage.finish()
    assert code == 1
    assert errors.splitlines()[-1] == "smg server: no worker is left"
    for actor in cast:
        actor.events_until_death()


def test_a_port_in_use_is_told_in_one_sentence(stage: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        stage.run("--port", str(port))
        code, errors = stage.finish()
    assert code == 1
    assert errors == (
        f"smg server: cannot listen on 127.0.0.1 port {port} (Address already in use); "
        "end what uses it, or choose another with --port\n"
    )


def test_an_address_of_another_machine_is_no_matter_of_the_port(stage: Stage) -> None:
    stage.run("--host", "203.0.113.7", "--port", str(free_port()))
    code, errors = stage.finish()
    assert code == 1
    assert "--host is no address of this machine" in errors
    assert "choose another" not in errors


def test_workers_that_never_get_ready_are_given_up(stage: Stage) -> None:
    stage.run("--port", str(free_port()), "--worker-startup-timeout-secs", "1")
    cast = stage.cast(3)
    code, errors = stage.finish()
    assert code == 1
    assert "not ready after 1 s; allow more with --worker-startup-timeout-secs" in errors
    for actor in cast:
        actor.events_until_death()


def test_without_the_engine_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(StopSignal, "listen", lambda self: None)
    assert main(["--model-path", "demo"]) == 1
    assert "the package sglang, which has the engine, is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_host_is_asked_with_and_without_brackets(host: str) -> None:
    assert local_net.Http(host, 7, None).url == "http://[::1]:7"
