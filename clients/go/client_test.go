package tidegate

import (
	"context"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

// server answers as a test says, and keeps what it was sent.
type server struct {
	tidegatev1.UnimplementedAdmissionServiceServer
	tidegatev1.UnimplementedFlowServiceServer

	mu       sync.Mutex
	failures int // UNAVAILABLE so often, then an answer
	ids      []string
	exits    int
}

func (s *server) seen(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
	if len(s.ids) <= s.failures {
		return status.Error(codes.Unavailable, "not yet")
	}
	return nil
}

func (s *server) Admit(_ context.Context, r *tidegatev1.AdmitRequest) (*tidegatev1.AdmitResponse, error) {
	return &tidegatev1.AdmitResponse{
		Verdict: tidegatev1.Verdict_VERDICT_ADMITTED,
		Binding: &tidegatev1.Binding{Provider: "qwen", Model: "qwen-next"},
		Hop:     &tidegatev1.HopGrant{HopId: "1"},
	}, s.seen(r.GetHop().GetRequestId())
}

func (s *server) EnterHop(_ context.Context, r *tidegatev1.EnterHopRequest) (*tidegatev1.EnterHopResponse, error) {
	answer := &tidegatev1.EnterHopResponse{Verdict: tidegatev1.Verdict_VERDICT_ADMITTED, Grant: &tidegatev1.HopGrant{HopId: "1"}}
	return answer, s.seen(r.GetRequestId())
}

func (s *server) RecordTokens(_ context.Context, r *tidegatev1.RecordTokensRequest) (*tidegatev1.RecordTokensResponse, error) {
	return &tidegatev1.RecordTokensResponse{}, s.seen(r.GetRequestId())
}

func (s *server) ExitHop(context.Context, *tidegatev1.ExitHopRequest) (*tidegatev1.ExitHopResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exits++
	return &tidegatev1.ExitHopResponse{Closed: true}, nil
}

func serve(t testing.TB, s tidegatev1.AdmissionServiceServer, options ...Option) *Client {
	t.Helper()
	t.Setenv(tokenVariable, "")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	tidegatev1.RegisterAdmissionServiceServer(g, s)
	if flow, ok := s.(tidegatev1.FlowServiceServer); ok {
		tidegatev1.RegisterFlowServiceServer(g, flow)
	}
	go g.Serve(listener)
	t.Cleanup(g.Stop)
	client, err := Dial(listener.Addr().String(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestARepeatedCallHasOneID(t *testing.T) {
	hop := &tidegatev1.EnterHopRequest{TargetAgent: "coder"}
	calls := map[string]func(*Client) error{
		"EnterHop": func(c *Client) error { _, err := c.EnterHop(t.Context(), hop); return err },
		"Admit": func(c *Client) error {
			request := &tidegatev1.AdmitRequest{FlowContext: &tidegatev1.AdmitRequest_Hop{Hop: hop}}
			return c.MayForward(t.Context(), request).Err()
		},
		"RecordTokens": func(c *Client) error {
			_, err := c.Flow.RecordTokens(t.Context(), &tidegatev1.RecordTokensRequest{HopId: "1"})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			s := &server{failures: 2}
			if err := call(serve(t, s)); err != nil {
				t.Fatal(err)
			}
			if len(s.ids) != 3 || s.ids[0] == "" || s.ids[0] != s.ids[1] || s.ids[1] != s.ids[2] {
				t.Errorf("three calls of one id, not %q", s.ids)
			}
			if hop.RequestId != "" {
				t.Error("the caller's own message was changed")
			}
		})
	}
}

func TestAnIDOfTheCallerIsKept(t *testing.T) {
	s := &server{}
	if _, err := serve(t, s).EnterHop(t.Context(), &tidegatev1.EnterHopRequest{RequestId: "mine"}); err != nil {
		t.Fatal(err)
	}
	if len(s.ids) != 1 || s.ids[0] != "mine" {
		t.Errorf("not %q", s.ids)
	}
}

func TestAHopIsLeftAlsoWhenItsRequestWasCancelled(t *testing.T) {
	s := &server{}
	ctx, cancel := context.WithCancel(t.Context())
	hop, err := serve(t, s).EnterHop(ctx, &tidegatev1.EnterHopRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := hop.Exit(ctx, 0, false); err != nil || s.exits != 1 {
		t.Errorf("%v, %d exits", err, s.exits)
	}
}

func TestNothingForwardsThatWasNotDecided(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	client := serve(t, &server{})
	for name, decision := range map[string]Decision{
		"zero":       {},
		"no request": client.MayForward(t.Context(), nil),
		"cancelled":  client.MayForward(cancelled, &tidegatev1.AdmitRequest{}),
	} {
		if decision.Forward() || decision.Err() == nil || decision.Binding() != nil || decision.Hop() != nil || decision.Headers() != nil {
			t.Errorf("%s: %v", name, decision)
		}
		recorder := httptest.NewRecorder()
		decision.WriteError(recorder)
		if recorder.Code < 400 {
			t.Errorf("%s: answered with %d", name, recorder.Code)
		}
	}
}

func TestATokenStaysOnThisMachine(t *testing.T) {
	t.Setenv(tokenVariable, "")
	directory := t.TempDir()
	t.Chdir(directory)
	token := filepath.Join(directory, localToken)
	if err := os.MkdirAll(filepath.Dir(token), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for target, shown := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:/s": true, "dns:///localhost:1": true,
		"192.0.2.1:1": false, "tidegate.example:1": false, "localhost.example:1": false, "dns:///tidegate.example:1": false,
	} {
		found, err := (&settings{}).token(target)
		if err != nil || (found != nil) != shown {
			t.Errorf("%s: %v, %v", target, found, err)
		}
		_, err = Dial(target, WithTokenFile(token))
		if (err == nil) != shown {
			t.Errorf("%s with a named token: %v", target, err)
		}
		if _, err = Dial(target, WithTokenFile(token), WithTLS(TLS{})); err != nil {
			t.Errorf("%s over TLS: %v", target, err)
		}
	}
}

func TestHalfAKeyPairIsAnError(t *testing.T) {
	if _, err := Dial("127.0.0.1:1", WithTLS(TLS{CertFile: "cert.pem"})); err == nil {
		t.Error("a certificate without its key")
	}
}

func TestTheClientsOwnDeadline(t *testing.T) {
	client := serve(t, &server{failures: 1 << 30})
	client.timeout = 150 * time.Millisecond
	decision := client.MayForward(context.Background(), &tidegatev1.AdmitRequest{})
	if decision.Forward() {
		t.Error("forwarded")
	}
}
