// Gateway is an OpenAI-style proxy that asks Tidegate before every inference request, and forwards nothing that was not
// admitted. It is an example to start from: one file for the proxy, one for the bytes of the request.
//
//	go run ./examples/gateway -upstream qwen=http://127.0.0.1:8000 -agent planner=KEY@http://127.0.0.1:9001
//
// A request names its conversation in `x-session-id`. An agent shows its key; what it then calls belongs to the flow of
// the trace context that it was given.
package main

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const (
	maxBody      = 8 << 20
	workerHeader = "X-Session-Id"
	ourHeaders   = "X-Gateway-"
)

type gateway struct {
	tidegate  *tidegate.Client
	timeout   time.Duration
	upstreams map[string]*url.URL // by the provider's alias
	agents    map[string]*agent   // by name
	proxy     http.Handler
}

type agent struct {
	key string
	url *url.URL
}

func main() {
	g := &gateway{upstreams: map[string]*url.URL{}, agents: map[string]*agent{}}
	listen := flag.String("listen", "127.0.0.1:8080", "where to listen")
	server := flag.String("tidegate", "", "Tidegate's address (TIDEGATE_SERVER)")
	flag.DurationVar(&g.timeout, "timeout", 3500*time.Millisecond, "how long a decision may take: longer than the server's cold wait")
	flag.Func("upstream", "PROVIDER=URL, may be repeated", g.addUpstream)
	flag.Func("agent", "NAME=KEY@URL, may be repeated", g.addAgent)
	flag.Parse()
	client, err := tidegate.Dial(*server)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	g.tidegate = client
	g.proxy = &httputil.ReverseProxy{Rewrite: rewrite, ErrorHandler: unreachable, FlushInterval: -1} // -1: a stream stays one

	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", g.infer)
	mux.HandleFunc("POST /v1/responses", g.infer)
	mux.HandleFunc("POST /agents/{name}", g.callAgent)
	serve(*listen, mux)
}

// infer admits an inference request, and forwards it to the binding of the answer.
func (g *gateway) infer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, "request_too_large", "The request has more than 8 MiB.")
		return
	}
	fields, err := members(body)
	if err != nil {
		fail(w, http.StatusBadRequest, "invalid_json", err.Error())
		return
	}
	request := &tidegatev1.AdmitRequest{
		Model:           fields.text("model"),
		WorkerId:        r.Header.Get(workerHeader),
		RequestBytes:    tidegate.Bytes(body),
		ReasoningEffort: fields.text("reasoning_effort"),
	}
	trace := tidegate.TraceFromHeaders(r.Header)
	if name := g.authenticated(r); name != "" && trace.Traceparent != "" {
		request.FlowContext = trace.Check(name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.timeout)
	defer cancel()
	decision := g.tidegate.MayForward(ctx, request)
	if !decision.Forward() {
		log.Printf("not forwarded: %v", decision.Err())
		decision.WriteError(w)
		return
	}
	upstream := g.upstreams[decision.Binding().GetProvider()]
	if upstream == nil {
		log.Printf("not forwarded: no -upstream for %s", decision.Binding().GetProvider())
		fail(w, http.StatusBadGateway, "upstream_not_configured", "The gateway does not know the provider's address.")
		return
	}
	changed := map[string]string{"model": decision.Binding().GetModel()}
	if effort := decision.Admission().Response; effort.GetReasoningEffortMapped() {
		changed["reasoning_effort"] = effort.GetReasoningEffort()
	}
	g.forward(w, r, upstream, fields.with(changed), decision.Headers())
}

// callAgent enters a hop, calls the agent with the hop's trace context, and exits whatever happens.
func (g *gateway) callAgent(w http.ResponseWriter, r *http.Request) {
	target := g.agents[r.PathValue("name")]
	if target == nil {
		fail(w, http.StatusNotFound, "agent_not_found", "The gateway knows no such agent.")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, "request_too_large", "The request has more than 8 MiB.")
		return
	}
	trace := tidegate.TraceFromHeaders(r.Header)
	hop, err := g.tidegate.EnterHop(r.Context(), &tidegatev1.EnterHopRequest{
		Traceparent: trace.Traceparent, Tracestate: trace.Tracestate,
		CallerAgent: g.authenticated(r), TargetAgent: r.PathValue("name"),
	})
	if err != nil {
		log.Printf("agent not called: %v", err)
		tidegate.HTTPAnswerTo(err).Write(w)
		return
	}
	hop.Inject(r.Header)
	status := &statusWriter{ResponseWriter: w}
	defer func() {
		if _, err := hop.Exit(r.Context(), 0, status.code < 400); err != nil {
			log.Print(err) // the flow ends by its time at the latest
		}
	}()
	g.forward(status, r, target.url, body, nil)
}

func unreachable(w http.ResponseWriter, _ *http.Request, err error) {
	log.Printf("the upstream did not answer: %v", err)
	fail(w, http.StatusBadGateway, "upstream_failed", "The upstream did not answer.")
}

type onward struct {
	to      *url.URL
	headers map[string]string
}

type onwardKey struct{}

func (g *gateway) forward(w http.ResponseWriter, r *http.Request, to *url.URL, body []byte, headers map[string]string) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	r = r.Clone(context.WithValue(r.Context(), onwardKey{}, onward{to, headers}))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	g.proxy.ServeHTTP(w, r)
}

// rewrite sends the request on. What the caller says in our own headers never reaches an upstream, nor does its key.
func rewrite(p *httputil.ProxyRequest) {
	to := p.In.Context().Value(onwardKey{}).(onward)
	p.SetURL(to.to)
	for name := range p.Out.Header {
		if strings.HasPrefix(http.CanonicalHeaderKey(name), ourHeaders) {
			delete(p.Out.Header, name)
		}
	}
	p.Out.Header.Del(workerHeader)
	p.Out.Header.Del("Authorization") // here goes the provider's own credential
	for name, value := range to.headers {
		p.Out.Header.Set(name, value)
	}
}

// authenticated is the agent whose key the caller showed; empty: it is no agent.
func (g *gateway) authenticated(r *http.Request) string {
	key, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	for name, known := range g.agents {
		if found && subtle.ConstantTimeCompare([]byte(key), []byte(known.key)) == 1 {
			return name
		}
	}
	return ""
}

func (g *gateway) addUpstream(text string) error {
	provider, address, _ := strings.Cut(text, "=")
	target, err := url.Parse(address)
	g.upstreams[provider] = target
	return err
}

func (g *gateway) addAgent(text string) error {
	name, rest, _ := strings.Cut(text, "=")
	key, address, found := strings.Cut(rest, "@")
	if !found || key == "" {
		return errors.New("NAME=KEY@URL")
	}
	target, err := url.Parse(address)
	g.agents[name] = &agent{key, target}
	return err
}

type statusWriter struct {
	http.ResponseWriter
	code int
}

func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets the proxy flush.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Should-Retry", "false")
	w.WriteHeader(status)
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	said := map[string]any{"message": message, "type": kind, "param": nil, "code": code}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": said}) // the caller is gone when this fails
}

func serve(address string, handler http.Handler) {
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	go func() {
		<-stop.Done()
		_ = server.Shutdown(context.Background())
	}()
	log.Printf("the gateway listens on %s", address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
