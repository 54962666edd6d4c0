package tidegate

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const (
	route    = "managed/routine"
	patience = 10 * time.Second // for what has to happen at once
)

// station admits everybody. Workers named "bad" are errors; a batch with one named "slow" waits until slowMayGo.
type station struct {
	tidegatev1.UnimplementedAdmissionServiceServer

	mu        sync.Mutex
	batches   [][]string
	alone     []string
	hopIDs    []string
	failures  int // so many batches fail with `failure`
	failure   codes.Code
	short     bool          // batches are answered with no results
	left      time.Duration // until the deadline of the last batch
	slow      chan int      // the size of each batch that waits
	slowMayGo chan struct{}
	cancelled chan struct{}
}

func newStation() *station {
	return &station{slow: make(chan int, 100), slowMayGo: make(chan struct{}), cancelled: make(chan struct{}, 100)}
}

func (s *station) Admit(_ context.Context, r *tidegatev1.AdmitRequest) (*tidegatev1.AdmitResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = append(s.alone, r.GetWorkerId())
	s.hopIDs = append(s.hopIDs, r.GetHop().GetRequestId())
	if strings.HasPrefix(r.GetWorkerId(), "bad") {
		return nil, status.Error(codes.InvalidArgument, "told alone")
	}
	return admitted(r), nil
}

func (s *station) AdmitBatch(ctx context.Context, r *tidegatev1.AdmitBatchRequest) (*tidegatev1.AdmitBatchResponse, error) {
	var names []string
	answer, isSlow := &tidegatev1.AdmitBatchResponse{}, false
	s.mu.Lock()
	for _, one := range r.GetRequests() {
		names = append(names, one.GetWorkerId())
		s.hopIDs = append(s.hopIDs, one.GetHop().GetRequestId())
		isSlow = isSlow || strings.HasPrefix(one.GetWorkerId(), "slow")
		answer.Results = append(answer.Results, resultFor(one))
	}
	s.batches = append(s.batches, names)
	if deadline, ok := ctx.Deadline(); ok {
		s.left = time.Until(deadline)
	}
	fails, short := len(s.batches) <= s.failures, s.short
	s.mu.Unlock()
	if fails {
		return nil, status.Error(s.failure, "told to the batch")
	}
	if short {
		return &tidegatev1.AdmitBatchResponse{}, nil
	}
	if isSlow {
		s.slow <- len(names)
		select {
		case <-s.slowMayGo:
		case <-ctx.Done():
			s.cancelled <- struct{}{}
		}
	}
	return answer, nil
}

func resultFor(r *tidegatev1.AdmitRequest) *tidegatev1.AdmitBatchResult {
	if strings.HasPrefix(r.GetWorkerId(), "bad") {
		e := &tidegatev1.ItemError{Code: int32(codes.InvalidArgument), Reason: "INVALID_REQUEST", Message: "told in the batch"}
		return &tidegatev1.AdmitBatchResult{Result: &tidegatev1.AdmitBatchResult_Error{Error: e}}
	}
	return &tidegatev1.AdmitBatchResult{Result: &tidegatev1.AdmitBatchResult_Response{Response: admitted(r)}}
}

func admitted(r *tidegatev1.AdmitRequest) *tidegatev1.AdmitResponse {
	answer := &tidegatev1.AdmitResponse{
		Verdict: tidegatev1.Verdict_VERDICT_ADMITTED, DecisionId: "of " + r.GetWorkerId(),
		Binding: &tidegatev1.Binding{Provider: "qwen", Model: "qwen-next"},
	}
	if r.GetHop() != nil {
		answer.Hop = &tidegatev1.HopGrant{HopId: "1"}
	}
	return answer
}

func asking(id string) *tidegatev1.AdmitRequest {
	return &tidegatev1.AdmitRequest{Model: route, WorkerId: id, RequestBytes: Bytes(nil)}
}

// together has several requests of new workers leave in one batch. What it returns waits for the decisions.
func together(t *testing.T, client *Client, contexts []context.Context, requests ...*tidegatev1.AdmitRequest) func() []Decision {
	t.Helper()
	_, wait := boarded(t, client, contexts, requests...)
	return wait
}

// boarded is together that also tells of each request when it has its decision.
func boarded(
	t *testing.T, client *Client, contexts []context.Context, requests ...*tidegatev1.AdmitRequest,
) ([]chan struct{}, func() []Decision) {
	t.Helper()
	c := client.coalescer
	key := laneKey{requests[0].GetModel(), false, requests[0].GetHop() != nil}
	held := &lane{key: key, leaving: true} // nobody sets a departure
	c.mu.Lock()
	c.lanes[key] = held
	c.mu.Unlock()
	decisions, told := make([]Decision, len(requests)), make([]chan struct{}, len(requests))
	for i, request := range requests {
		ctx := t.Context()
		if contexts != nil {
			ctx = contexts[i]
		}
		told[i] = make(chan struct{})
		go func() {
			defer close(told[i])
			decisions[i] = client.MayForward(ctx, request)
		}()
	}
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(held.waiting) == len(requests)
	})
	c.departLater(held)
	return told, func() []Decision {
		for _, one := range told {
			within(t, one)
		}
		return decisions
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for begun := time.Now(); !is(); runtime.Gosched() {
		if time.Since(begun) > patience {
			t.Fatal("never came")
		}
	}
}

func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-time.After(patience):
		t.Fatal("never came")
		panic("unreachable")
	}
}

func TestRidersLeaveAsOneAndEachGetsItsOwnAnswer(t *testing.T) {
	s := newStation()
	var requests []*tidegatev1.AdmitRequest
	for n := range 100 {
		requests = append(requests, asking(fmt.Sprint("w", n)))
	}
	for i, decision := range together(t, serve(t, s, WithCoalescing()), nil, requests...)() {
		if !decision.Forward() || decision.Admission().Response.GetDecisionId() != fmt.Sprint("of w", i) {
			t.Errorf("%d: %v", i, decision)
		}
	}
	if len(s.batches) != 1 || len(s.batches[0]) != 100 || len(s.alone) != 0 {
		t.Errorf("%d batches, %d alone", len(s.batches), len(s.alone))
	}
}

func TestConcurrentCallsRideAndNoBatchHasMoreThanAServerTakes(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	key := laneKey{model: route}
	client.coalescer.lanes[key] = &lane{key: key, leaving: true} // the first to leave is a full one
	var done sync.WaitGroup
	const asked = 4*mostRiders + 1
	for n := range asked {
		done.Go(func() {
			if decision := client.MayForward(t.Context(), asking(fmt.Sprint("w", n))); !decision.Forward() {
				t.Error(decision.Err())
			}
		})
	}
	done.Wait()
	total, most := 0, 0
	for _, batch := range s.batches {
		total, most = total+len(batch), max(most, len(batch))
	}
	if total != asked || most != mostRiders || len(s.alone) != 0 {
		t.Errorf("%d asked in %d batches of at most %d, %d alone", total, len(s.batches), most, len(s.alone))
	}
	eventually(t, func() bool { // a lane that nobody uses is forgotten
		client.coalescer.mu.Lock()
		defer client.coalescer.mu.Unlock()
		return len(client.coalescer.lanes) == 0
	})
}

func TestAnErrorIsThatRequestsAloneAndToldInFull(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	decisions := together(t, client, nil, asking("good"), asking("bad"), asking("other"))()
	if !decisions[0].Forward() || !decisions[2].Forward() {
		t.Error(decisions[0].Err(), decisions[2].Err())
	}
	if e := ErrorOf(decisions[1].Err()); e.Code != codes.InvalidArgument || e.Message != "told alone" {
		t.Error(e)
	}
	if !slices.Equal(s.alone, []string{"bad"}) {
		t.Errorf("alone: %q", s.alone)
	}
	if e := ErrorOf(client.MayForward(t.Context(), asking("\xff")).Err()); e.Code != codes.InvalidArgument || len(s.batches) != 1 {
		t.Errorf("%v, after %d batches", e, len(s.batches))
	}
}

func TestABatchThatFailedIsAskedOneByOne(t *testing.T) {
	for name, s := range map[string]*station{
		"status": {failures: 1, failure: codes.Internal}, "too short": {short: true},
	} {
		t.Run(name, func(t *testing.T) {
			hop := asking("a")
			hop.FlowContext = &tidegatev1.AdmitRequest_Hop{Hop: &tidegatev1.EnterHopRequest{TargetAgent: "coder"}}
			if decision := serve(t, s, WithCoalescing()).MayForward(t.Context(), hop); decision.Hop() == nil {
				t.Error(decision.Err())
			}
			if len(s.batches) != 1 || len(s.alone) != 1 {
				t.Errorf("%d batches, %d alone", len(s.batches), len(s.alone))
			}
			if len(s.hopIDs) != 2 || s.hopIDs[0] == "" || s.hopIDs[0] != s.hopIDs[1] {
				t.Errorf("one hop, one id, not %q", s.hopIDs)
			}
			if hop.GetHop().GetRequestId() != "" {
				t.Error("the caller's own message was changed")
			}
		})
	}
}

func TestABatchIsRepeatedAsOne(t *testing.T) {
	s := newStation()
	s.failures, s.failure = 2, codes.Unavailable
	for _, decision := range together(t, serve(t, s, WithCoalescing()), nil, asking("a"), asking("b"))() {
		if !decision.Forward() {
			t.Error(decision.Err())
		}
	}
	if len(s.batches) != 3 || len(s.alone) != 0 {
		t.Errorf("%d batches, %d alone", len(s.batches), len(s.alone))
	}
}

// expiring is a context whose deadline passes when the test says so.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Deadline() (time.Time, bool) { return time.Now().Add(time.Minute), true }
func (e expiring) Done() <-chan struct{}       { return e.passed }
func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestADeadlineIsItsOwnCalls(t *testing.T) {
	s := newStation()
	patient, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	hasty := expiring{t.Context(), make(chan struct{})}
	client := serve(t, s, WithCoalescing())
	told, wait := boarded(t, client, []context.Context{patient, hasty}, asking("slow"), asking("hasty"))
	if size := within(t, s.slow); size != 2 {
		t.Errorf("a batch of %d", size)
	}
	if s.left < 30*time.Minute {
		t.Errorf("the batch has %v, and its most patient rider an hour", s.left)
	}
	close(hasty.passed)
	within(t, told[1]) // while the batch is still out
	close(s.slowMayGo)
	decisions := wait()
	if e := ErrorOf(decisions[1].Err()); !decisions[0].Forward() || e.Code != codes.DeadlineExceeded {
		t.Error(decisions[0].Err(), e)
	}
	if e := ErrorOf(client.MayForward(hasty, asking("late")).Err()); e.Code != codes.DeadlineExceeded {
		t.Error(e)
	}
	if len(s.batches) != 1 {
		t.Errorf("rode: %q", s.batches)
	}
}

func TestWhoIsCancelledLeavesTheOthersToTheirAnswers(t *testing.T) {
	s := newStation()
	gone, cancel := context.WithCancel(t.Context())
	told, wait := boarded(t, serve(t, s, WithCoalescing()), []context.Context{gone, t.Context()}, asking("gone"), asking("slow"))
	within(t, s.slow)
	cancel()
	within(t, told[0]) // while the batch is still out
	close(s.slowMayGo)
	if decisions := wait(); decisions[0].Forward() || !decisions[1].Forward() {
		t.Error(decisions)
	}
}

func TestWhoIsCancelledReturnsAtOnceAndBeforeTheDepartureDoesNotRide(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	key := laneKey{model: route}
	held := &lane{key: key, leaving: true}
	client.coalescer.lanes[key] = held
	gone, cancel := context.WithCancel(t.Context())
	decision := make(chan Decision, 1)
	go func() { decision <- client.MayForward(gone, asking("gone")) }()
	eventually(t, func() bool {
		client.coalescer.mu.Lock()
		defer client.coalescer.mu.Unlock()
		return len(held.waiting) == 1
	})
	cancel()
	if e := ErrorOf(within(t, decision).Err()); e.Code != codes.Canceled {
		t.Error(e)
	}
	client.coalescer.departLater(held)
	if !client.MayForward(t.Context(), asking("stays")).Forward() || len(s.batches) != 1 || len(s.batches[0]) != 1 {
		t.Errorf("rode: %q", s.batches)
	}
}

func TestABatchThatNobodyWaitsForIsCancelled(t *testing.T) {
	s := newStation()
	ctx, cancel := context.WithCancel(t.Context())
	wait := together(t, serve(t, s, WithCoalescing()), []context.Context{ctx, ctx}, asking("slow"), asking("too"))
	within(t, s.slow)
	cancel()
	within(t, s.cancelled)
	for _, decision := range wait() {
		if e := ErrorOf(decision.Err()); e.Code != codes.Canceled {
			t.Error(e)
		}
	}
}

func TestABoundWorkersRequestDoesNotWaitForANewWorkers(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	client.MayForward(t.Context(), asking("bound"))
	wait := together(t, client, nil, asking("slow1"), asking("slow2"))
	within(t, s.slow)
	if !client.MayForward(t.Context(), asking("bound")).Forward() {
		t.Error("not forwarded")
	}
	close(s.slowMayGo)
	wait()
}

func TestWhileBatchesAreOutARequestWaitsNoLongerThanTheTimer(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	var done sync.WaitGroup
	for n := range batchesOut + 2 { // each a batch of its own, none of which comes back
		done.Go(func() { client.MayForward(t.Context(), asking(fmt.Sprint("slow", n))) })
		if size := within(t, s.slow); size != 1 {
			t.Errorf("a batch of %d", size)
		}
	}
	close(s.slowMayGo)
	done.Wait()
}

func TestAClosedClientLeavesNobodyWaiting(t *testing.T) {
	s := newStation()
	client := serve(t, s, WithCoalescing())
	wait := together(t, client, nil, asking("slow"), asking("too"))
	within(t, s.slow)
	client.Close()
	for _, decision := range wait() {
		if decision.Forward() {
			t.Error("forwarded")
		}
	}
}

func TestACallWithMetadataOfItsOwnGoesAlone(t *testing.T) {
	s := newStation()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-1-2-01")
	if !serve(t, s, WithCoalescing()).MayForward(ctx, asking("a")).Forward() || len(s.alone) != 1 || len(s.batches) != 0 {
		t.Errorf("%d batches, %d alone", len(s.batches), len(s.alone))
	}
}

func TestWithoutTheOptionNothingRides(t *testing.T) {
	s := newStation()
	if !serve(t, s).MayForward(t.Context(), asking("a")).Forward() || len(s.alone) != 1 || len(s.batches) != 0 {
		t.Errorf("%d batches, %d alone", len(s.batches), len(s.alone))
	}
}

func TestMayForwardBatchHasADecisionForEachRequest(t *testing.T) {
	client := serve(t, newStation())
	dry := asking("dry")
	dry.DryRun = true
	decisions := client.MayForwardBatch(t.Context(), []*tidegatev1.AdmitRequest{asking("a"), asking("bad"), nil, dry, asking("\xff"), asking("b")})
	for i, forward := range []bool{true, false, false, false, false, true} {
		if decisions[i].Forward() != forward || (decisions[i].Err() == nil) != forward {
			t.Errorf("%d: %v", i, decisions[i].Err())
		}
	}
	if e := ErrorOf(decisions[1].Err()); e.Code != codes.InvalidArgument || e.Reason != "INVALID_REQUEST" {
		t.Error(e)
	}
	if answer := decisions[1].HTTPAnswer(); answer.Status != 400 {
		t.Error(answer.Status)
	}
	if len(client.MayForwardBatch(t.Context(), nil)) != 0 {
		t.Error("decisions about nothing")
	}
}

func TestMayForwardBatchFailsClosed(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	requests := []*tidegatev1.AdmitRequest{asking("a"), asking("b")}
	for name, decisions := range map[string][]Decision{
		"status":    serve(t, &station{failures: 1, failure: codes.PermissionDenied}).MayForwardBatch(t.Context(), requests),
		"too short": serve(t, &station{short: true}).MayForwardBatch(t.Context(), requests),
		"cancelled": serve(t, newStation()).MayForwardBatch(gone, requests),
	} {
		for i, decision := range decisions {
			if decision.Forward() || decision.Err() == nil || decision.Binding() != nil {
				t.Errorf("%s %d: %v", name, i, decision)
			}
		}
		if len(decisions) != 2 {
			t.Errorf("%s: %d decisions", name, len(decisions))
		}
	}
	if e := errorOfItem(&tidegatev1.ItemError{}); e.Code == codes.OK {
		t.Error("an error that says OK")
	}
}
