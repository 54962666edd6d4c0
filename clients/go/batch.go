package tidegate

import (
	"context"

	"google.golang.org/grpc/codes"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// MayForwardBatch is [Client.MayForward] for up to 256 requests in one call. There is one Decision for each request, in
// the same order, whatever happens; an error of one is that one's alone. A gateway that serves its callers one by one
// has no use for it: see [WithCoalescing].
func (c *Client) MayForwardBatch(ctx context.Context, requests []*tidegatev1.AdmitRequest) []Decision {
	decisions := make([]Decision, len(requests))
	if len(requests) == 0 {
		return decisions
	}
	batch := &tidegatev1.AdmitBatchRequest{Requests: make([]*tidegatev1.AdmitRequest, len(requests))}
	for i, request := range requests {
		batch.Requests[i] = request
		if request == nil {
			batch.Requests[i] = &tidegatev1.AdmitRequest{} // the server says what it lacks
		}
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	response, err := c.Admission.AdmitBatch(ctx, batch)
	for i, request := range batch.Requests {
		switch results := response.GetResults(); {
		case err != nil:
			decisions[i].err = ErrorOf(err)
		case i >= len(results):
			decisions[i].err = errorOfItem(nil)
		case results[i].GetResponse() != nil:
			decisions[i].admission = c.admission(request, results[i].GetResponse())
		default:
			decisions[i].err = errorOfItem(results[i].GetError())
		}
	}
	return decisions
}

// errorOfItem is the error of one request of a batch; nil stands for a result that is missing or empty.
func errorOfItem(item *tidegatev1.ItemError) *Error {
	if item == nil {
		return &Error{Code: codes.Internal, Message: "the server gave no result for this request"}
	}
	e := &Error{Code: codes.Code(item.GetCode()), Reason: item.GetReason(), Message: item.GetMessage()}
	if e.Code == codes.OK {
		e.Code = codes.Unknown // an error whose status says OK is still no answer
	}
	return e
}
