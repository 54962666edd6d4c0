package tidegate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// Admission is the answer to one piece of work; a refusal is one, too.
type Admission struct {
	// Response is the whole answer. Never nil.
	Response *tidegatev1.AdmitResponse

	flaw error // why it gives no permission, though it is an answer
	hop  *Hop
}

// Admit asks whether this work may start, and where. An error is an [*Error]: no decision was possible.
//
// Every hop without a request_id is given one, so that a repeated call is charged once.
func (c *Client) Admit(ctx context.Context, request *tidegatev1.AdmitRequest) (*Admission, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	ask := c.askAlone
	if c.coalescer != nil {
		ask = c.coalescer.admit
	}
	response, err := ask(ctx, request)
	if err != nil {
		return nil, ErrorOf(err)
	}
	return c.admission(request, response), nil
}

func (c *Client) askAlone(ctx context.Context, request *tidegatev1.AdmitRequest) (*tidegatev1.AdmitResponse, error) {
	return c.Admission.Admit(ctx, request)
}

// admission judges an answer.
func (c *Client) admission(request *tidegatev1.AdmitRequest, response *tidegatev1.AdmitResponse) *Admission {
	admission := &Admission{Response: response, flaw: flawOf(request, response)}
	if grant := response.GetHop(); grant != nil && admission.MayForward() {
		admission.hop = &Hop{Grant: grant, client: c}
	}
	return admission
}

// MayForward tells whether the work may be forwarded, and where. It never fails otherwise than by a decision that does
// not forward: the one call of a gateway that fails closed.
func (c *Client) MayForward(ctx context.Context, request *tidegatev1.AdmitRequest) Decision {
	if request == nil {
		return Decision{err: &Error{Code: codes.InvalidArgument, Message: "there is no request"}}
	}
	admission, err := c.Admit(ctx, request)
	return Decision{admission: admission, err: err}
}

// MayForward is true for an answer of ADMITTED or BYPASSED that names where the work goes, and for nothing else.
func (a *Admission) MayForward() bool { return a != nil && a.flaw == nil }

// Decision is an answer, or the error that stands in its place. The zero Decision does not forward.
type Decision struct {
	admission *Admission
	err       error
}

// Forward tells whether the work may be forwarded: only to [Decision.Binding].
func (d Decision) Forward() bool { return d.err == nil && d.admission.MayForward() }

// Err says why not, and is nil exactly when [Decision.Forward] is true: an [*Error] when no decision was possible, else
// the refusal in words.
func (d Decision) Err() error {
	switch {
	case d.err != nil:
		return d.err
	case d.admission == nil:
		return errors.New("tidegate: nobody was asked")
	}
	return d.admission.flaw
}

// Admission is the answer; nil when there was none.
func (d Decision) Admission() *Admission { return d.admission }

// Binding is where the work goes; nil unless it may be forwarded.
func (d Decision) Binding() *tidegatev1.Binding {
	if !d.Forward() {
		return nil
	}
	return d.admission.Response.GetBinding()
}

// Headers are for the gateway's response and for the upstream request (x-gateway-upstream, x-session-id, …); empty
// unless the work may be forwarded.
func (d Decision) Headers() map[string]string {
	if !d.Forward() {
		return nil
	}
	return d.admission.Response.GetHeaders()
}

// Hop is the hop that was entered with the admission; nil without one. Exit it when the work is done.
func (d Decision) Hop() *Hop {
	if !d.Forward() {
		return nil
	}
	return d.admission.hop
}

// Refusal is the policy's "no"; nil when the work may be forwarded, and when there was no decision at all.
func (d Decision) Refusal() *tidegatev1.Refusal {
	if d.err != nil || d.admission == nil || d.Forward() {
		return nil
	}
	return d.admission.Response.GetRefusal()
}

// RetryDelay is when asking again may help; 0 when nothing known will change.
func (d Decision) RetryDelay() time.Duration {
	var e *Error
	if errors.As(d.err, &e) {
		return e.RetryDelay
	}
	return d.Refusal().GetRetryDelay().AsDuration()
}

// flawOf says why an answer gives no permission to forward; nil when it does.
func flawOf(request *tidegatev1.AdmitRequest, response *tidegatev1.AdmitResponse) error {
	switch response.GetVerdict() {
	case tidegatev1.Verdict_VERDICT_ADMITTED, tidegatev1.Verdict_VERDICT_BYPASSED:
	case tidegatev1.Verdict_VERDICT_REFUSED:
		return fmt.Errorf("tidegate: refused: %s", sentence(response.GetRefusal()))
	default:
		return fmt.Errorf("tidegate: verdict %d is no permission to forward", response.GetVerdict())
	}
	switch {
	case request.GetDryRun():
		return errors.New("tidegate: a dry run is no permission to forward")
	case response.GetBinding().GetProvider() == "" || response.GetBinding().GetModel() == "":
		return errors.New("tidegate: the answer does not say where to forward")
	case request.GetHop() != nil && response.GetHop().GetHopId() == "":
		return errors.New("tidegate: the answer does not hold the hop that was asked for")
	}
	return nil
}

// bounded gives a call without a deadline the client's own.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, set := ctx.Deadline(); set {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// Bytes is the value of request_bytes: the exact size of the caller's serialized request.
func Bytes(body []byte) *int64 { return proto.Int64(int64(len(body))) }
