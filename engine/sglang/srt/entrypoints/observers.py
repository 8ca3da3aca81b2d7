"""Who observes the answers of a worker, by its options."""

from sglang.srt.observability.answer_watch import AnswerObserver
from sglang.srt.observability.request_log import RequestLog
from sglang.srt.observability.tracing import RequestTracer
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__


class Observers:
    """`active` are told of each answer that ends."""

    def __init__(self, args: ServerArgs) -> None:
        self.active: list[AnswerObserver] = []
        self._tracer: RequestTracer | None = None
        if args.log_requests:
            as_json = args.log_requests_format == "json"
            self.active.append(RequestLog(args.log_requests_level, as_json=as_json))
        if args.enable_trace:
            name = str(args.served_model_name)
            self._tracer = RequestTracer(args.otlp_traces_endpoint, name, __version__)
            self.active.append(self._tracer)

    def shut_down(self) -> None:
        """Sends the last spans; takes a few seconds at most."""
        if self._tracer is not None:
            self._tracer.shut_down()
