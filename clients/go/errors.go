package tidegate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const domain = "tidegate"

// Error is a call that got a gRPC status instead of an answer. A "no" by policy is an answer; an Error says that no
// decision was possible. In every case: do not forward the work.
type Error struct {
	// Code is the gRPC status.
	Code codes.Code
	// Reason is the ErrorReason without its prefix (PIN_STORE_UNAVAILABLE); empty when the status did not come from a
	// Tidegate server: a dead connection, a proxy, the client's own deadline.
	Reason string
	// Message is one sentence for people.
	Message string
	// Metadata names what was asked for: {"model": "managed/rutine"}.
	Metadata map[string]string
	// RetryDelay is how long the server asks to wait; 0 when it does not say.
	RetryDelay time.Duration
	// Violations are the faults of an INVALID_ARGUMENT, field by field.
	Violations []Violation
}

// Violation is one fault of a rejected request.
type Violation struct {
	// Field is its path: requests[3].worker_id.
	Field string
	// Description is the fault in plain words.
	Description string
}

func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "tidegate: %s", e.Code)
	if e.Reason != "" {
		fmt.Fprintf(&text, " (%s)", e.Reason)
	}
	fmt.Fprintf(&text, ": %s", e.Message)
	for _, violation := range e.Violations {
		fmt.Fprintf(&text, "; %s: %s", violation.Field, violation.Description)
	}
	return text.String()
}

// GRPCStatus makes status.Code and status.FromError understand an Error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// HopRefused is the policy's "no" to a hop: the agent must not be invoked.
type HopRefused struct {
	// Refusal is never nil; without a reason where the server's verdict was none that grants.
	Refusal *tidegatev1.Refusal
}

func (r *HopRefused) Error() string { return "tidegate: hop refused: " + sentence(r.Refusal) }

// ErrorOf turns the error of a generated stub into an [Error], with all that its details say.
func ErrorOf(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	s := status.Convert(err)
	if code := status.FromContextError(err).Code(); s.Code() == codes.Unknown && code != codes.Unknown {
		s = status.FromContextError(err)
	}
	e := &Error{Code: s.Code(), Message: s.Message()}
	if e.Code == codes.OK {
		e.Code = codes.Unknown // an error whose status says OK is still no answer
	}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				e.Reason, e.Metadata = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			e.RetryDelay = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{v.GetField(), v.GetDescription()})
			}
		}
	}
	return e
}

func sentence(r *tidegatev1.Refusal) string {
	reason := strings.TrimPrefix(r.GetReason().String(), "REFUSAL_REASON_")
	if r.GetMessage() == "" {
		return reason
	}
	return reason + ": " + r.GetMessage()
}
