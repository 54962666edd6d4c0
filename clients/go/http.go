package tidegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// HTTPAnswer is what the gateway's own caller gets instead of an inference: an OpenAI-style error, whose status makes
// common SDKs (which retry 408, 409, 429 and 5xx) retry only what is retryable.
type HTTPAnswer struct {
	Status int
	Header http.Header
	Body   []byte
}

// WriteError answers the gateway's own caller. It writes nothing when the work may be forwarded.
func (d Decision) WriteError(w http.ResponseWriter) {
	if !d.Forward() {
		d.HTTPAnswer().Write(w)
	}
}

// HTTPAnswer is the answer to a request that must not be forwarded.
func (d Decision) HTTPAnswer() HTTPAnswer {
	if d.err != nil {
		return answerToError(ErrorOf(d.err))
	}
	if refusal := d.Refusal(); refusal != nil {
		return answerToRefusal(refusal)
	}
	return answerToError(&Error{Code: codes.Unknown})
}

// HTTPAnswerTo is the answer to a hop that was not granted: err is what [Client.EnterHop] returned.
func HTTPAnswerTo(err error) HTTPAnswer {
	var refused *HopRefused
	if errors.As(err, &refused) {
		return answerToRefusal(refused.Refusal)
	}
	return answerToError(ErrorOf(err))
}

// Write sends the answer.
func (a HTTPAnswer) Write(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // the caller is gone when this fails
}

func answerToRefusal(r *tidegatev1.Refusal) HTTPAnswer {
	status := int(r.GetHttpStatus())
	if status < 400 || status > 599 {
		return answerToError(&Error{Code: codes.Unknown})
	}
	return answer(status, r.GetRetryable(), r.GetRetryDelay().AsDuration(), r.GetCode(), r.GetMessage())
}

// answerToError tells the caller only what a Tidegate server says about the request itself: whatever else went wrong is
// between the gateway and its operator.
func answerToError(e *Error) HTTPAnswer {
	switch code := strings.ToLower(e.Reason); {
	case e.Code == codes.InvalidArgument && code != "":
		return answer(http.StatusBadRequest, false, 0, code, e.Message)
	case e.Code == codes.NotFound && code != "":
		return answer(http.StatusNotFound, false, 0, code, e.Message)
	case e.Code == codes.Unavailable, e.Code == codes.ResourceExhausted, e.Code == codes.DeadlineExceeded:
		const message = "No decision on this request was possible now; it was not forwarded."
		return answer(http.StatusServiceUnavailable, true, e.RetryDelay, "admission_unavailable", message)
	}
	const message = "No decision on this request was possible; it was not forwarded."
	return answer(http.StatusInternalServerError, false, 0, "admission_failed", message)
}

func answer(status int, retryable bool, delay time.Duration, code, message string) HTTPAnswer {
	kind := "invalid_request_error"
	if status == http.StatusTooManyRequests {
		kind = "rate_limit_error"
	} else if status >= 500 {
		kind = "server_error"
	}
	body, err := json.Marshal(map[string]any{
		"error": map[string]any{"message": message, "type": kind, "param": nil, "code": code},
	})
	if err != nil {
		panic(fmt.Sprintf("tidegate: strings always encode: %v", err))
	}
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set("X-Should-Retry", strconv.FormatBool(retryable))
	if delay > 0 {
		header.Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
	}
	return HTTPAnswer{Status: status, Header: header, Body: body}
}
