package tidegate

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkCoalescing compares a client with WithCoalescing and a plain one, with 256 calls in flight, in turns, against
// a running server:
//
//	TIDEGATE_SERVER=127.0.0.1:50051 go test -run '^$' -bench Coalescing -benchtime 5x
//
// It reports the decisions a second of both and the median of the ratios.
func BenchmarkCoalescing(b *testing.B) {
	if os.Getenv(serverVariable) == "" {
		b.Skip("needs a server: " + serverVariable)
	}
	var ratios, plain, coalesced []float64
	for b.Loop() {
		coalesced = append(coalesced, decisionsPerSecond(b, WithCoalescing()))
		plain = append(plain, decisionsPerSecond(b))
		ratios = append(ratios, coalesced[len(coalesced)-1]/plain[len(plain)-1])
	}
	b.ReportMetric(0, "ns/op") // a round is as long as it is told to be
	b.ReportMetric(median(coalesced), "coalesced/s")
	b.ReportMetric(median(plain), "plain/s")
	b.ReportMetric(median(ratios), "coalesced:plain")
}

func decisionsPerSecond(b *testing.B, options ...Option) float64 {
	client, err := Dial("", options...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	model := os.Getenv("TIDEGATE_BENCH_MODEL")
	if model == "" {
		model = "managed/routine"
	}
	asked := func(during time.Duration) float64 {
		var made atomic.Int64
		var done sync.WaitGroup
		begun := time.Now()
		for n := range 256 {
			done.Go(func() {
				request := asking(fmt.Sprint("worker-", n))
				request.Model, request.RequestBytes = model, Bytes(make([]byte, 2048))
				for time.Since(begun) < during {
					if decision := client.MayForward(context.Background(), request); !decision.Forward() {
						b.Error(decision.Err())
						return
					}
					made.Add(1)
				}
			})
		}
		done.Wait()
		return float64(made.Load()) / time.Since(begun).Seconds()
	}
	asked(300 * time.Millisecond) // the connection, and the pins
	return asked(time.Second)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
