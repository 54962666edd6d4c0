package tidegate

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// MayForwardBatch is [Client.MayForward] for up to 256 requests in one call. There is one Decision for each request, in
// the same order, whatever happens; an error of one is that one's alone. A gateway that serves its callers one by one
// has no use for it: see [WithCoalescing].
func (c *Client) MayForwardBatch(ctx context.Context, requests []*tidegatev1.AdmitRequest) []Decision {
	decisions := make([]Decision, len(requests))
	batch := &tidegatev1.AdmitBatchRequest{}
	var places []int
	for i, request := range requests {
		if err := encodable(request); err != nil {
			decisions[i].err = err
			continue
		}
		batch.Requests, places = append(batch.Requests, request), append(places, i)
	}
	if len(places) == 0 {
		return decisions
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	response, err := c.Admission.AdmitBatch(ctx, batch)
	results := response.GetResults()
	for i, place := range places {
		switch {
		case err != nil:
			decisions[place].err = ErrorOf(err)
		case i >= len(results):
			decisions[place].err = errorOfItem(nil)
		case results[i].GetResponse() != nil:
			decisions[place].admission = c.admission(batch.Requests[i], results[i].GetResponse())
		default:
			decisions[place].err = errorOfItem(results[i].GetError())
		}
	}
	return decisions
}

// encodable keeps a request out of a batch that it would be the end of: one with text that is no UTF-8, or none at all.
func encodable(request *tidegatev1.AdmitRequest) error {
	if request == nil {
		return &Error{Code: codes.InvalidArgument, Message: "there is no request"}
	}
	if _, err := proto.Marshal(request); err != nil {
		return &Error{Code: codes.InvalidArgument, Message: "the request cannot be encoded: " + err.Error()}
	}
	return nil
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
