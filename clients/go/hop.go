package tidegate

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// Hop is one call into an agent that was granted. It exists only when the agent may be invoked.
type Hop struct {
	// Grant is what the server said: the chain, what the flow has left.
	Grant *tidegatev1.HopGrant

	client *Client
}

// EnterHop asks whether an agent may be invoked now, and charges the hop. An error says that it must not be: a
// [*HopRefused] by policy, an [*Error] when no decision was possible.
//
// A request without a request_id is given one, so that a repeated call is charged once.
func (c *Client) EnterHop(ctx context.Context, request *tidegatev1.EnterHopRequest) (*Hop, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	response, err := c.Flow.EnterHop(ctx, request)
	if err != nil {
		return nil, ErrorOf(err)
	}
	grant := response.GetGrant()
	if response.GetVerdict() != tidegatev1.Verdict_VERDICT_ADMITTED || grant.GetHopId() == "" {
		refusal := response.GetRefusal()
		if refusal == nil {
			refusal = &tidegatev1.Refusal{Message: "the server's answer grants no hop"}
		}
		return nil, &HopRefused{Refusal: refusal}
	}
	return &Hop{Grant: grant, client: c}, nil
}

// Trace is the trace context to pass to the agent.
func (h *Hop) Trace() TraceContext {
	return TraceContext{Traceparent: h.Grant.GetTraceparent(), Tracestate: h.Grant.GetTracestate()}
}

// Inject puts the trace context on the request to the agent, in the place of whatever was there.
func (h *Hop) Inject(header http.Header) { h.Trace().Inject(header) }

// RecordTokens adds tokens that the agent has used. Stop when the answer says that the flow's tokens are exhausted.
func (h *Hop) RecordTokens(ctx context.Context, tokens int64) (*tidegatev1.RecordTokensResponse, error) {
	ctx, cancel := h.client.bounded(ctx)
	defer cancel()
	response, err := h.client.Flow.RecordTokens(ctx, &tidegatev1.RecordTokensRequest{
		Traceparent: h.Grant.GetTraceparent(), Tracestate: h.Grant.GetTracestate(), HopId: h.Grant.GetHopId(), Tokens: tokens,
	})
	if err != nil {
		return nil, ErrorOf(err)
	}
	return response, nil
}

// Exit closes the hop and settles its reservation; tokens are added to those recorded before. A hop closes once: calling
// it again charges nothing. It is carried out also when ctx was cancelled, for the agent is done then, too.
func (h *Hop) Exit(ctx context.Context, tokens int64, success bool) (*tidegatev1.ExitHopResponse, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.client.timeout)
	defer cancel()
	response, err := h.client.Flow.ExitHop(ctx, &tidegatev1.ExitHopRequest{
		Traceparent: h.Grant.GetTraceparent(), Tracestate: h.Grant.GetTracestate(), HopId: h.Grant.GetHopId(),
		Tokens: tokens, Success: success,
	})
	if err != nil {
		return nil, ErrorOf(err)
	}
	return response, nil
}

// mintRequestIDs gives each hop and each record of tokens an id of its own where the caller gave none: gRPC may repeat
// the call, and the id makes the repeat count once. The caller's message is left as it is.
func mintRequestIDs(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	switch r := request.(type) {
	case *tidegatev1.EnterHopRequest:
		if r.GetRequestId() == "" {
			r = proto.CloneOf(r)
			r.RequestId = rand.Text()
			request = r
		}
	case *tidegatev1.RecordTokensRequest:
		if r.GetRequestId() == "" {
			r = proto.CloneOf(r)
			r.RequestId = rand.Text()
			request = r
		}
	case *tidegatev1.AdmitRequest:
		if lacksID(r) {
			r = proto.CloneOf(r)
			r.GetHop().RequestId = rand.Text()
			request = r
		}
	case *tidegatev1.AdmitBatchRequest:
		if !slices.ContainsFunc(r.GetRequests(), lacksID) {
			break // a batch is large, and few have hops: no copy for nothing
		}
		r = proto.CloneOf(r)
		for _, one := range r.GetRequests() {
			if lacksID(one) {
				one.GetHop().RequestId = rand.Text()
			}
		}
		request = r
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

func lacksID(r *tidegatev1.AdmitRequest) bool {
	return r.GetHop() != nil && r.GetHop().GetRequestId() == ""
}
