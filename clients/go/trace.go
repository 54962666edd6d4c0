package tidegate

import (
	"net/http"
	"strings"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const (
	traceparentHeader = "traceparent"
	tracestateHeader  = "tracestate"
)

// TraceContext is the W3C trace context of a request, exactly as it came: this package never mends, makes or drops one.
//
// It works beside OpenTelemetry and does not need it. To pass the current span on, let OpenTelemetry write its headers
// first, then read them here: spans in between do not matter to the flow guard, since tracestate travels unchanged.
//
//	otel.GetTextMapPropagator().Inject(ctx, propagation.HeaderCarrier(header))
//	trace := tidegate.TraceFromHeaders(header)
type TraceContext struct {
	Traceparent, Tracestate string
}

// TraceFromHeaders reads the trace context of a request. Several tracestate headers are one list (W3C Trace Context
// §3.3.1); several traceparent headers stay several, joined, and the server refuses them.
func TraceFromHeaders(header http.Header) TraceContext {
	return TraceContext{joined(header, traceparentHeader), joined(header, tracestateHeader)}
}

// Inject puts the trace context on a request in the place of whatever was there, under any spelling.
func (t TraceContext) Inject(header http.Header) {
	for name := range header {
		if strings.EqualFold(name, traceparentHeader) || strings.EqualFold(name, tracestateHeader) {
			delete(header, name)
		}
	}
	if t.Traceparent == "" {
		return // a tracestate without a traceparent means nothing
	}
	header.Set(traceparentHeader, t.Traceparent)
	if t.Tracestate != "" {
		header.Set(tracestateHeader, t.Tracestate)
	}
}

// Check places an inference request of this agent, as the gateway authenticated it, in its flow: for
// AdmitRequest.flow_context.
func (t TraceContext) Check(agent string) *tidegatev1.AdmitRequest_Flow {
	return &tidegatev1.AdmitRequest_Flow{
		Flow: &tidegatev1.FlowCheck{Traceparent: t.Traceparent, Tracestate: t.Tracestate, Agent: agent},
	}
}

func joined(header http.Header, name string) string {
	var values []string
	for key, found := range header {
		if strings.EqualFold(key, name) {
			values = append(values, found...)
		}
	}
	return strings.Join(values, ",")
}
