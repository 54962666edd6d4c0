// Package tidegate is the client of Tidegate, the admission service that a gateway calls before inference.
//
//	client, err := tidegate.Dial("")  // TIDEGATE_SERVER, else 127.0.0.1:50051
//	…
//	decision := client.MayForward(ctx, &tidegatev1.AdmitRequest{
//		Model: "managed/routine", WorkerId: "thread-42", RequestBytes: proto.Int64(int64(len(body))),
//	})
//	if !decision.Forward() {
//		decision.WriteError(w) // an OpenAI-style error, with Retry-After where waiting helps
//		return
//	}
//	forward(body, decision.Binding(), decision.Headers())
//
// Whatever is not an answer of ADMITTED or BYPASSED means "do not forward", and [Decision.Forward] says exactly that.
// The zero Decision does not forward either.
package tidegate
