package tidegate

import (
	"context"
	"crypto/rand"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const (
	// longestWait is how long a request may wait for others while batchesOut batches of its lane are on their way.
	longestWait = 200 * time.Microsecond
	// batchesOut: one batch is decided while the next one travels; a third would only be smaller.
	batchesOut = 2
	// mostRiders is what the server takes in one AdmitBatch (§11 of the contract).
	mostRiders = 256
	// workersKnown bounds what is remembered of workers that were admitted before.
	workersKnown = 65_536
)

// coalescer lets concurrent admissions ride together: one AdmitBatch in place of many Admits.
//
// What is asked at about the same moment leaves together. While a few batches are out, what comes meanwhile leaves when
// one of them is back, and waits for that no longer than longestWait.
//
// Whatever is not a decision is asked again alone, by a call of its own: so an error of one request is that request's
// alone, with all that its status says and with the usual retries. Only where the server could not be reached at all,
// retries included, all riders are told so.
//
// A batch is answered when its last item is, which may take a cold wait. So requests ride in lanes: apart by model,
// those of workers that were admitted before apart from new ones, and those that enter a hop apart from the rest.
type coalescer struct {
	admission tidegatev1.AdmissionServiceClient

	mu       sync.Mutex // guards everything below, lanes, and the riders' ride
	lanes    map[laneKey]*lane
	admitted map[worker]struct{}
}

type worker struct{ model, tenant, id string }

type laneKey struct {
	model         string
	known, hasHop bool
}

// lane is a queue of requests that share a fate, and so their batches.
type lane struct {
	key     laneKey
	waiting []*rider
	out     int
	leaving bool        // a departure is set
	timer   *time.Timer // that departure, when it waits for a batch to be back
}

// rider is one request, the answer that its caller waits for, and the ride that it left with.
type rider struct {
	ctx     context.Context
	request *tidegatev1.AdmitRequest
	answer  chan answered // holds one, so that the answer of one who left blocks nobody
	ride    *ride
}

// ride is one batch on its way.
type ride struct {
	riders []*rider
	aboard int // riders whose callers still wait
	cancel context.CancelFunc
}

// answered is the decision, or the error in its place; neither: the request has to be asked alone.
type answered struct {
	response *tidegatev1.AdmitResponse
	err      error
}

func newCoalescer(admission tidegatev1.AdmissionServiceClient) *coalescer {
	return &coalescer{admission: admission, lanes: map[laneKey]*lane{}, admitted: map[worker]struct{}{}}
}

// admit is Admit within a context that has a deadline. It returns as soon as the context is done; when that is so for
// all riders of a batch, the batch is cancelled, too.
func (c *coalescer) admit(ctx context.Context, request *tidegatev1.AdmitRequest) (*tidegatev1.AdmitResponse, error) {
	if _, own := metadata.FromOutgoingContext(ctx); own {
		return c.admission.Admit(ctx, request) // metadata belong to a call: a batch could carry only one rider's
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err := encodable(request); err != nil {
		return nil, err
	}
	// The caller may be gone, and change its message, before the batch is sent.
	r := &rider{ctx: ctx, request: proto.CloneOf(request), answer: make(chan answered, 1)}
	if lacksID(r.request) {
		r.request.GetHop().RequestId = rand.Text() // here, so that asking alone after the ride charges no second time
	}
	c.board(r)
	var a answered
	select {
	case a = <-r.answer:
	case <-ctx.Done():
		c.leave(r)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if a.response == nil && a.err == nil {
		return c.admission.Admit(ctx, r.request)
	}
	return a.response, a.err
}

func (c *coalescer) board(r *rider) {
	who := workerOf(r.request)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.admitted[who]
	key := laneKey{who.model, known, r.request.GetHop() != nil}
	l := c.lanes[key]
	if l == nil {
		l = &lane{key: key}
		c.lanes[key] = l
	}
	l.waiting = append(l.waiting, r)
	switch {
	case len(l.waiting) >= mostRiders:
		c.depart(l)
	case l.leaving:
	case l.out < batchesOut:
		l.leaving = true
		go func() {
			runtime.Gosched() // let goroutines that are ready to ask do so
			c.departLater(l)
		}()
	default:
		l.leaving = true
		l.timer = time.AfterFunc(longestWait, func() { c.departLater(l) })
	}
}

func (c *coalescer) departLater(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.depart(l)
}

// depart sends those who wait on their ride. A departure that was set may find that they have left already, with one
// that was full or with one that came back: then those who came since leave early, or nobody does.
func (c *coalescer) depart(l *lane) {
	l.leaving = false
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	var deadline time.Time
	riders := make([]*rider, 0, len(l.waiting))
	for _, r := range l.waiting {
		if r.ctx.Err() != nil {
			continue
		}
		riders = append(riders, r)
		if own, _ := r.ctx.Deadline(); own.After(deadline) {
			deadline = own
		}
	}
	l.waiting = nil
	if len(riders) == 0 {
		c.retire(l)
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	together := &ride{riders: riders, aboard: len(riders), cancel: cancel}
	for _, r := range riders {
		r.ride = together
	}
	l.out++
	go c.run(ctx, l, together)
}

// run carries a ride out and answers each rider.
func (c *coalescer) run(ctx context.Context, l *lane, together *ride) {
	defer together.cancel()
	batch := &tidegatev1.AdmitBatchRequest{Requests: make([]*tidegatev1.AdmitRequest, len(together.riders))}
	for i, r := range together.riders {
		batch.Requests[i] = r.request
	}
	response, err := c.admission.AdmitBatch(ctx, batch)
	results := response.GetResults()

	c.mu.Lock()
	for i, r := range together.riders {
		if i < len(results) && admits(r.request, results[i].GetResponse()) {
			c.remember(workerOf(r.request))
		}
	}
	c.mu.Unlock()
	for i, r := range together.riders {
		var a answered
		switch {
		case status.Code(err) == codes.Unavailable:
			a.err = err
		case err == nil && i < len(results):
			a.response = results[i].GetResponse()
		}
		r.answer <- a
	}
	runtime.Gosched() // those who were answered may have the next thing to ask, and come along
	c.mu.Lock()
	defer c.mu.Unlock()
	l.out--
	switch {
	case len(l.waiting) == 0:
		c.retire(l)
	case l.out < batchesOut: // else the timer is set
		c.depart(l)
	}
}

// leave: the caller of r waits no longer.
func (c *coalescer) leave(r *rider) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ride == nil {
		return // it is left behind at the departure
	}
	if r.ride.aboard--; r.ride.aboard == 0 {
		r.ride.cancel()
	}
}

// retire forgets a lane that nobody uses.
func (c *coalescer) retire(l *lane) {
	if l.out == 0 && c.lanes[l.key] == l {
		delete(c.lanes, l.key)
	}
}

func (c *coalescer) remember(who worker) {
	if len(c.admitted) >= workersKnown {
		clear(c.admitted) // they are known again after one ride each
	}
	c.admitted[who] = struct{}{}
}

func workerOf(request *tidegatev1.AdmitRequest) worker {
	return worker{request.GetModel(), request.GetTenant(), request.GetWorkerId()}
}

func admits(request *tidegatev1.AdmitRequest, response *tidegatev1.AdmitResponse) bool {
	return response.GetVerdict() == tidegatev1.Verdict_VERDICT_ADMITTED && !request.GetDryRun()
}
