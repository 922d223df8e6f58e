package framing_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/seed202c38ff/fabricnet/framing"
)

// A frame is a header and a payload, whose length is in the header.
func ExampleHeader() {
	token := [16]byte{1, 2, 3} // from the receiver's Attach, where it is random
	payload := "some bytes"
	header := framing.Header{
		Type: framing.TypeData, Length: uint16(len(payload)),
		Peer: 1, Proof: framing.Proof(token), Stream: 7, Pos: 4096,
	}
	frame := make([]byte, framing.HeaderSize, 256)
	header.Encode(frame)
	frame = append(frame, payload...)

	var got framing.Header
	rest, err := got.Decode(frame)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v of stream %d at %d: %q\n", got.Type, got.Stream, got.Pos, rest)

	_, err = got.Decode(frame[:len(frame)-1])
	fmt.Println(errors.Is(err, framing.ErrLength))
	// Output:
	// data of stream 7 at 4096: "some bytes"
	// true
}

// Messages of the handshake are preceded by their length.
func ExampleAppendMessage() {
	message, err := framing.AppendMessage(nil, framing.KindReject, &framing.Reject{
		Code: framing.RejectUnauthorized, Text: "not on the list",
	})
	if err != nil {
		log.Fatal(err)
	}

	n, err := framing.DecodeLength(message[:framing.LengthSize])
	if err != nil {
		log.Fatal(err)
	}
	kind, body, err := framing.SplitMessage(message[framing.LengthSize:][:n])
	if err != nil {
		log.Fatal(err)
	}
	var reject framing.Reject
	if err := framing.DecodeBody(body, &reject); err != nil {
		log.Fatal(err)
	}
	fmt.Println(kind, "because:", reject.Text)
	// Output: reject because: not on the list
}

// Completion data identifies a lease and a write. Everything else is in frames.
func ExampleMakeImmediate() {
	data := framing.MakeImmediate(3, 32767, true)
	fmt.Println(data.Lease(), data.Seq(), data.Continues())
	// Output: 3 32767 true
}
