package engine

// sendState is how far a stream's sending direction has come. It moves only as its table says. An event that
// the table does not list for a state has no effect, such as a second Close, an answer to what was not
// asked, or a Reset after the end.
type sendState uint8

const (
	sendOpen      sendState = iota // data may follow
	sendFin                        // CloseWrite: our Fin is queued or sent
	sendFinAcked                   // our Fin was answered: the peer has everything
	sendClosing                    // Close: our Fin with FlagClosed is queued or sent
	sendReclosing                  // the same, after sendFinAcked
	sendAborting                   // our Reset is due once no write is in flight
	sendAborted                    // our Reset is queued or sent
	sendClosed                     // the peer has everything, or wants no more, and writes nothing more
	sendCut                        // the peer writes nothing more; nobody knows what it has
)

type sendEvent uint8

const (
	evCloseWrite sendEvent = iota // the user has no more data
	evClose                       // the user has no more data and takes none
	evAbort                       // the user gives the stream up
	evResetSent                   // no write was in flight
	evAcked                       // the answer to our Fin
	evCloseAcked                  // the answer to our Fin with FlagClosed, or to our Reset
	evRefused                     // the peer's Reset, or its loss after it has closed
	evLost                        // the loss of the peer
)

// sendMoves says where each event leads from each state. Zero is nowhere: nothing leads back to sendOpen.
var sendMoves = [...][evLost + 1]sendState{
	sendOpen:      {evCloseWrite: sendFin, evClose: sendClosing, evAbort: sendAborting, evLost: sendCut, evRefused: sendClosed},
	sendFin:       {evAcked: sendFinAcked, evCloseAcked: sendFinAcked, evClose: sendClosing, evAbort: sendAborting, evLost: sendCut, evRefused: sendClosed},
	sendFinAcked:  {evClose: sendReclosing, evAbort: sendAborting, evLost: sendClosed, evRefused: sendClosed},
	sendClosing:   {evCloseAcked: sendClosed, evAbort: sendAborting, evLost: sendCut, evRefused: sendClosed},
	sendReclosing: {evCloseAcked: sendClosed, evAbort: sendAborting, evLost: sendClosed, evRefused: sendClosed},
	sendAborting:  {evResetSent: sendAborted, evLost: sendCut, evRefused: sendCut},
	sendAborted:   {evCloseAcked: sendCut, evLost: sendCut, evRefused: sendCut},
	sendClosed:    {},
	sendCut:       {},
}

// move takes in event e and reports whether it led anywhere.
func (s *sendState) move(e sendEvent) bool {
	next := sendMoves[*s][e]
	if next == sendOpen {
		return false
	}
	*s = next
	return true
}

// recvState is how far a stream's receiving direction has come.
type recvState uint8

const (
	recvOpen recvState = iota // data may follow
	recvFin                   // the peer's Fin is here, but not all that precedes it
	recvEOF                   // everything is here
	recvCut                   // a Reset, or the loss of the peer, came before that
)

// ends reports whether it is known where the stream ends.
func (r recvState) ends() bool { return r == recvFin || r == recvEOF }

// grantState says whether a stream has a landing ring of the peer's, or is to get one.
type grantState uint8

const (
	grantNone      grantState = iota
	grantAsking               // the next data frame is going to ask for a ring
	grantAsked                // that frame, or a Want frame, has asked for it
	grantRecalled             // the ring was revoked before its Lease came
	grantHeld                 // the stream has a ring
	grantReplacing            // it has a second one, to use once no write to the first is in flight
	grantReturning            // the ring was revoked: it goes back once no write is in flight
)

// writerState is where a stream's writer stands among the writers to its peer.
type writerState uint8

const (
	writerFree    writerState = iota // it waits for nothing that other writers could take
	writerBlocked                    // it waits, in peer.blocked
	writerAwake                      // it was woken from there, and is not back yet
)
