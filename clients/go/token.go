package tidegate

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenFile is a bearer token in a file, read again when the file changes, so that a rotated token needs no restart.
type tokenFile struct {
	path string

	mu    sync.Mutex
	token string
	size  int64
	time  time.Time
}

// GetRequestMetadata shows the token to the server. gRPC ends the call when it fails, so that a token that cannot be
// read is never taken for none.
func (f *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity leaves it to [settings.token], which knows a loopback address from another one.
func (f *tokenFile) RequireTransportSecurity() bool { return false }

func (f *tokenFile) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	status, err := os.Stat(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if f.token != "" && status.Size() == f.size && status.ModTime().Equal(f.time) {
		return f.token, nil
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("token file %s: holds no single token", f.path)
	}
	f.token, f.size, f.time = token, status.Size(), status.ModTime()
	return token, nil
}
