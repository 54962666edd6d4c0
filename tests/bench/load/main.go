// Load calls one unary gRPC method as fast as the server answers, or at a fixed rate, and tells how long calls took.
//
// Requests are bytes from a file, answers are bytes that are only looked at, so that the generator never is what is
// measured. At a fixed rate a call's time runs from the moment at which it was due, not from the moment at which it
// could be sent: a server that stalls is charged for the calls that had to wait (no coordinated omission).
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

var (
	target      = flag.String("target", "", "the server's address")
	method      = flag.String("method", "", "the method's full name, /package.Service/Method")
	requests    = flag.String("requests", "", "a file of requests, each behind its length (4 bytes, big endian)")
	begins      = flag.String("begins", "", "hex: what every good answer begins with")
	token       = flag.String("token", "", "a bearer token to send along")
	connections = flag.Int("connections", 4, "connections to open")
	inFlight    = flag.Int("in-flight", 32, "calls at once")
	rate        = flag.Float64("rate", 0, "calls a second; 0: as many as are answered")
	calls       = flag.Int("calls", 0, "stop after so many calls; 0: only the time counts")
	warmUp      = flag.Duration("warm-up", 300*time.Millisecond, "how long to call before measuring")
	length      = flag.Duration("length", 2*time.Second, "how long to measure, at the most")
)

// raw is a codec that leaves bytes alone.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

// Result is what is printed, as JSON. Times are in microseconds.
type Result struct {
	Calls     int     `json:"calls"`
	Bad       int     `json:"bad"`
	FirstBad  string  `json:"first_bad"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50"`
	P90       float64 `json:"p90"`
	P99       float64 `json:"p99"`
	P999      float64 `json:"p999"`
	Longest   float64 `json:"longest"`
}

// load is one run.
type load struct {
	channels []*grpc.ClientConn
	requests [][]byte
	begins   []byte
	next     atomic.Int64 // of the requests
	started  time.Time
	mu       sync.Mutex
	times    []time.Duration
	bad      int
	firstBad string
}

func main() {
	flag.Parse()
	l := &load{requests: read(*requests)}
	var err error
	if l.begins, err = hex.DecodeString(*begins); err != nil {
		log.Fatal("-begins: ", err)
	}
	for range *connections {
		channel, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})), grpc.WithDisableServiceConfig())
		if err != nil {
			log.Fatal(err)
		}
		defer channel.Close()
		l.channels = append(l.channels, channel)
	}
	l.run(*warmUp, 0)
	l.times, l.bad = nil, 0
	seconds := l.run(*length, *calls)
	if err := json.NewEncoder(os.Stdout).Encode(l.result(seconds)); err != nil {
		log.Fatal(err)
	}
}

// read gives the requests of a file.
func read(path string) [][]byte {
	file, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	var all [][]byte
	for in := bufio.NewReader(file); ; {
		var size uint32
		if err := binary.Read(in, binary.BigEndian, &size); err == io.EOF && len(all) > 0 {
			return all
		} else if err != nil {
			log.Fatal(path, ": ", err)
		}
		one := make([]byte, size)
		if _, err := io.ReadFull(in, one); err != nil {
			log.Fatal(path, ": ", err)
		}
		all = append(all, one)
	}
}

// run calls for that long, or until that many calls are made, and returns how many seconds it took.
func (l *load) run(length time.Duration, most int) float64 {
	l.started = time.Now()
	end := l.started.Add(length)
	var made atomic.Int64
	var all sync.WaitGroup
	for i := range *inFlight {
		all.Go(func() {
			channel := l.channels[i%len(l.channels)]
			var times []time.Duration
			for time.Now().Before(end) {
				number := made.Add(1)
				if most > 0 && number > int64(most) {
					break
				}
				due := l.due(number)
				if due.After(end) {
					break
				}
				l.call(channel)
				times = append(times, time.Since(due))
			}
			l.mu.Lock()
			l.times = append(l.times, times...)
			l.mu.Unlock()
		})
	}
	all.Wait()
	return time.Since(l.started).Seconds()
}

// due waits for the moment of the call with this number, and returns it.
func (l *load) due(number int64) time.Time {
	if *rate == 0 {
		return time.Now()
	}
	due := l.started.Add(time.Duration(float64(number) / *rate * float64(time.Second)))
	time.Sleep(time.Until(due))
	return due
}

func (l *load) call(channel *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if *token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*token)
	}
	request := l.requests[int(l.next.Add(1)-1)%len(l.requests)]
	var answer []byte
	err := channel.Invoke(ctx, *method, &request, &answer)
	if err == nil && bytes.HasPrefix(answer, l.begins) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad++
	if l.firstBad == "" {
		l.firstBad = fmt.Sprintf("%v %.200x", err, answer)
	}
}

func (l *load) result(seconds float64) Result {
	slices.Sort(l.times)
	at := func(share float64) float64 {
		if len(l.times) == 0 {
			return 0
		}
		place := min(len(l.times)-1, int(share*float64(len(l.times))))
		return float64(l.times[place].Nanoseconds()) / 1e3
	}
	return Result{Calls: len(l.times), Bad: l.bad, FirstBad: l.firstBad, Seconds: seconds,
		PerSecond: float64(len(l.times)) / seconds, P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Longest: at(1)}
}
