package tidegate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	tidegatev1 "github.com/tidegate/tidegate/clients/go/gen/tidegate/v1"
)

const (
	// DefaultTarget is where a server listens that was told nothing else.
	DefaultTarget = "127.0.0.1:50051"
	// DefaultTimeout bounds a call whose context has no deadline: its retries and the server's cold wait (2.5 s by
	// default) included.
	DefaultTimeout = 10 * time.Second

	serverVariable = "TIDEGATE_SERVER"
	tokenVariable  = "TIDEGATE_TOKEN_FILE"
	localToken     = "state/local.token"
)

// serviceConfig repeats UNAVAILABLE, and nothing else, within the deadline of the call. Every call here may be repeated:
// the first pin of a worker is found again, and [mintRequestIDs] gives each hop and each record of tokens an id by which
// it is charged once.
const serviceConfig = `{"methodConfig": [{
	"name": [{"service": "tidegate.v1.AdmissionService"}, {"service": "tidegate.v1.FlowService"}],
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// Keepalive is how a client notices a dead server: a ping after 10 s of silence, with or without calls. The server
// accepts one every 5 s and cuts a client that pings more often.
var Keepalive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 8 * time.Second, PermitWithoutStream: true}

// TLS protects the connection; with CertFile and KeyFile also mTLS.
type TLS struct {
	// CAFile holds the authority that signed the server's certificate; empty: those of the system.
	CAFile string
	// CertFile and KeyFile are the client's own, and belong together. They are read at every handshake, so that
	// rotated ones count without a restart.
	CertFile, KeyFile string
	// ServerName is the name in the server's certificate, where it is not the host of the target.
	ServerName string
}

// Option is a setting of [Dial].
type Option func(*settings)

type settings struct {
	tls       *TLS
	tokenFile string
	insecure  bool
	timeout   time.Duration
	coalesce  bool
	dial      []grpc.DialOption
}

// WithTLS protects the connection. Without it the connection is in clear, for this machine only.
func WithTLS(t TLS) Option { return func(s *settings) { s.tls = &t } }

// WithTokenFile names the file of the bearer token. It is read again when it changes. Left out: the file that
// TIDEGATE_TOKEN_FILE names, else, for a server on this machine, ./state/local.token where it can be read.
func WithTokenFile(path string) Option { return func(s *settings) { s.tokenFile = path } }

// WithInsecure allows a token in clear to another machine, over a network that is itself trusted.
func WithInsecure() Option { return func(s *settings) { s.insecure = true } }

// WithTimeout bounds calls whose context has no deadline, instead of [DefaultTimeout].
func WithTimeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

// WithCoalescing lets concurrent calls of Admit and MayForward ride together in AdmitBatch, for a busy gateway: a request
// waits at most 200 µs for others, a batch has at most 256, and each call keeps its own deadline, cancellation and error.
// A call whose context carries outgoing gRPC metadata goes alone, for a batch has only its own.
func WithCoalescing() Option { return func(s *settings) { s.coalesce = true } }

// WithDialOptions passes options to gRPC, after this package's own: a stats handler of OpenTelemetry, say.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// Client speaks to one server. It may be shared by goroutines, and holds one connection.
type Client struct {
	// Admission is AdmissionService, message for message, with this client's identity and retries.
	Admission tidegatev1.AdmissionServiceClient
	// Flow is FlowService.
	Flow tidegatev1.FlowServiceClient

	conn      *grpc.ClientConn
	timeout   time.Duration
	coalescer *coalescer // nil: every admission goes alone
}

// Dial makes a client for `host:port` or `unix:/path`; empty: TIDEGATE_SERVER, else [DefaultTarget]. Nothing is sent
// before the first call.
func Dial(target string, options ...Option) (*Client, error) {
	s := settings{timeout: DefaultTimeout}
	for _, option := range options {
		option(&s)
	}
	if target == "" {
		target = os.Getenv(serverVariable)
	}
	if target == "" {
		target = DefaultTarget
	}
	dial, err := s.dialOptions(target)
	if err != nil {
		return nil, fmt.Errorf("tidegate: %w", err)
	}
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("tidegate: %s: %w", target, err)
	}
	client := &Client{
		Admission: tidegatev1.NewAdmissionServiceClient(conn),
		Flow:      tidegatev1.NewFlowServiceClient(conn),
		conn:      conn,
		timeout:   s.timeout,
	}
	if s.coalesce {
		client.coalescer = newCoalescer(client.Admission)
	}
	return client, nil
}

// Conn is the connection, for the services that this package wraps no further.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Close ends the connection and the calls in flight.
func (c *Client) Close() error { return c.conn.Close() }

func (s *settings) dialOptions(target string) ([]grpc.DialOption, error) {
	transport := insecure.NewCredentials()
	if s.tls != nil {
		config, err := s.tls.config()
		if err != nil {
			return nil, err
		}
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(Keepalive),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // ours, not one that a name server hands out
		grpc.WithChainUnaryInterceptor(mintRequestIDs),
		// A server that restarts is found again at once, not after gRPC's two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
	token, err := s.token(target)
	if err != nil {
		return nil, err
	}
	if token != nil {
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	return append(options, s.dial...), nil
}

// token finds the token. A server on another machine is never shown the token of a local one that merely lies in the
// working directory.
func (s *settings) token(target string) (*tokenFile, error) {
	path := s.tokenFile
	if path == "" {
		path = os.Getenv(tokenVariable)
	}
	if path == "" {
		if !isLocal(target) || !readable(localToken) {
			return nil, nil
		}
		path = localToken
	}
	if s.tls == nil && !s.insecure && !isLocal(target) {
		return nil, fmt.Errorf("%s: a token needs TLS outside this machine (or WithInsecure)", target)
	}
	return &tokenFile{path: path}, nil
}

func (t *TLS) config() (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: holds no certificate", t.CAFile)
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("TLS: CertFile and KeyFile belong together, one is missing")
	}
	if t.CertFile == "" {
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		return &pair, err
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}

// isLocal tells whether a target stays on this machine: a unix socket, localhost or a loopback address.
func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	host, _, err := net.SplitHostPort(target[strings.LastIndex(target, "/")+1:])
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func readable(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	return file.Close() == nil
}
