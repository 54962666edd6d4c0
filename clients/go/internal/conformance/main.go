// Conformance runs this client on behalf of the conformance suite (tests/conformance/README.md): it reads one operation a
// line as JSON, carries it out with the public functions of this package, and writes what came of it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sort"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	tidegate "github.com/tidegate/tidegate/clients/go"
	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

type operation struct {
	Op      string          `json:"op"`
	Request json.RawMessage `json:"request"`
	Timeout float64         `json:"timeout"`
	Headers [][2]string     `json:"headers"`
	Trace   struct {
		Traceparent string `json:"traceparent"`
		Tracestate  string `json:"tracestate"`
	} `json:"trace"`
	Hop     string `json:"hop"`
	Tokens  int64  `json:"tokens"`
	Success bool   `json:"success"`
}

type result map[string]any

type runner struct {
	client *tidegate.Client
	hops   map[string]*tidegate.Hop
}

func main() {
	var options []tidegate.Option
	if ca := os.Getenv("TIDEGATE_CA"); ca != "" {
		tls := tidegate.TLS{
			CAFile: ca, CertFile: os.Getenv("TIDEGATE_CERTIFICATE"), KeyFile: os.Getenv("TIDEGATE_KEY"),
			ServerName: os.Getenv("TIDEGATE_SERVER_NAME"),
		}
		options = append(options, tidegate.WithTLS(tls))
	}
	if os.Getenv("TIDEGATE_COALESCE") != "" {
		options = append(options, tidegate.WithCoalescing())
	}
	client, err := tidegate.Dial("", options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer client.Close()
	r := runner{client, map[string]*tidegate.Hop{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if err := out.Encode(r.run(o)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}

func (r *runner) run(o operation) result {
	ctx := context.Background()
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(o.Timeout*float64(time.Second)))
		defer cancel()
	}
	switch o.Op {
	case "admit":
		return r.admit(ctx, o)
	case "pin":
		request := &tidegatev1.PinRequest{}
		read(o.Request, request)
		response, err := r.client.Admission.Pin(ctx, request)
		return answered(response, err)
	case "trace":
		trace := tidegate.TraceFromHeaders(header(o.Headers))
		return result{"trace": map[string]string{"traceparent": trace.Traceparent, "tracestate": trace.Tracestate}}
	case "inject":
		h := header(o.Headers)
		tidegate.TraceContext{Traceparent: o.Trace.Traceparent, Tracestate: o.Trace.Tracestate}.Inject(h)
		return result{"headers": pairs(h)}
	case "enterHop":
		return r.enterHop(ctx, o)
	case "recordTokens":
		response, err := r.hops[o.Hop].RecordTokens(ctx, o.Tokens)
		return answered(response, err)
	case "exitHop":
		response, err := r.hops[o.Hop].Exit(ctx, o.Tokens, o.Success)
		return answered(response, err)
	}
	return result{"unknown": o.Op}
}

// admit places the request in the flow of the headers, where there are any, as a gateway does.
func (r *runner) admit(ctx context.Context, o operation) result {
	request := &tidegatev1.AdmitRequest{}
	read(o.Request, request)
	trace := tidegate.TraceFromHeaders(header(o.Headers))
	if check := request.GetFlow(); check != nil && check.Traceparent == "" && trace.Traceparent != "" {
		request.FlowContext = trace.Check(check.Agent)
	}
	decision := r.client.MayForward(ctx, request)
	var said result
	if decision.Admission() != nil {
		said = answered(decision.Admission().Response, nil)
	} else {
		said = answered(nil, decision.Err())
	}
	said["forward"] = decision.Forward()
	if decision.Forward() {
		said["binding"] = written(decision.Binding())
	} else {
		said["http"] = httpAnswer(decision.HTTPAnswer())
	}
	if decision.Hop() != nil {
		r.hops[decision.Hop().Grant.GetHopId()] = decision.Hop()
	}
	return said
}

func (r *runner) enterHop(ctx context.Context, o operation) result {
	request := &tidegatev1.EnterHopRequest{}
	read(o.Request, request)
	h := header(o.Headers)
	trace := tidegate.TraceFromHeaders(h)
	request.Traceparent, request.Tracestate = trace.Traceparent, trace.Tracestate
	hop, err := r.client.EnterHop(ctx, request)
	if err != nil {
		said := answered(nil, err)
		said["granted"] = false
		said["http"] = httpAnswer(tidegate.HTTPAnswerTo(err))
		return said
	}
	hop.Inject(h)
	r.hops[hop.Grant.GetHopId()] = hop
	return result{"granted": true, "response": written(hop.Grant), "headers": pairs(h)}
}

// answered is a response, or what stands in its place.
func answered(response proto.Message, err error) result {
	if err == nil {
		return result{"response": written(response)}
	}
	var refused *tidegate.HopRefused
	if errors.As(err, &refused) {
		return result{"refusal": written(refused.Refusal)}
	}
	e := tidegate.ErrorOf(err)
	fields := []string{}
	for _, violation := range e.Violations {
		fields = append(fields, violation.Field)
	}
	return result{"error": result{"status": code.Code(e.Code).String(), "reason": e.Reason, "fields": fields}}
}

func httpAnswer(a tidegate.HTTPAnswer) result {
	return result{"status": a.Status, "headers": pairs(a.Header), "body": json.RawMessage(a.Body)}
}

func read(text json.RawMessage, into proto.Message) {
	if err := protojson.Unmarshal(text, into); err != nil {
		panic(err)
	}
}

func written(message proto.Message) json.RawMessage {
	text, err := protojson.Marshal(message)
	if err != nil {
		panic(err)
	}
	return text
}

func header(pairs [][2]string) http.Header {
	h := http.Header{}
	for _, pair := range pairs {
		h.Add(pair[0], pair[1])
	}
	return h
}

func pairs(h http.Header) [][2]string {
	found := [][2]string{}
	for name, values := range h {
		for _, value := range values {
			found = append(found, [2]string{name, value})
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i][0] < found[j][0] })
	return found
}
