package engine

// What a stream is at is kept in a few small machines, each of which moves by its table
// alone. An event that a table does not have for a state moves nothing: a second Close, an
// answer to what was not asked, a Reset after the end.

// moves says where each event leads from each state: zero is nowhere, for nothing leads
// back to a first state.
type moves[S, E ~uint8] [][]S

// move takes event e in, and reports whether it led anywhere.
func (m moves[S, E]) move(s *S, e E) bool {
	row := m[*s]
	if int(e) >= len(row) || row[e] == 0 {
		return false
	}
	*s = row[e]
	return true
}

// sendState is how far a stream's sending direction has come.
type sendState uint8

const (
	sendOpen      sendState = iota // data may follow
	sendFin                        // CloseWrite: our Fin is queued or sent
	sendFinAcked                   // it was answered: the peer has everything
	sendClosing                    // Close: our Fin with FlagClosed is queued or sent
	sendReclosing                  // Close after sendFinAcked
	sendAborting                   // a Reset is due, when no write is in flight any more
	sendAborted                    // it is queued or sent
	sendClosed                     // the peer has everything, or wants no more, and writes nothing more
	sendCut                        // it writes nothing more; nobody knows what it has
)

type sendEvent uint8

const (
	evCloseWrite sendEvent = iota // the user has no more data
	evClose                       // nor takes any
	evAbort                       // the user gives the stream up
	evResetSent                   // no write was in flight
	evAcked                       // the answer to our Fin
	evCloseAcked                  // the answer to our Fin with FlagClosed, or to our Reset
	evRefused                     // the peer's Reset, or its end after it has closed
	evLost                        // its end
)

var sendMoves = moves[sendState, sendEvent]{
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

// recvState is how far a stream's receiving direction has come.
type recvState uint8

const (
	recvOpen recvState = iota // data may follow
	recvFin                   // the peer's Fin is here, but not all that precedes it
	recvEOF                   // everything is
	recvCut                   // a Reset, or the peer's end, came before that
)

type recvEvent uint8

const (
	evFin       recvEvent = iota // the peer's Fin
	evComplete                   // all that precedes it has arrived
	evCut                        // the peer's Reset, or its end
	evDiscarded                  // the endpoint has gone, with what was not read
)

var recvMoves = moves[recvState, recvEvent]{
	recvOpen: {evFin: recvFin, evCut: recvCut, evDiscarded: recvCut},
	recvFin:  {evComplete: recvEOF, evCut: recvCut, evDiscarded: recvCut},
	recvEOF:  {evDiscarded: recvCut},
	recvCut:  {evDiscarded: recvCut},
}

// ends reports that it is known where the stream ends.
func (r recvState) ends() bool { return r == recvFin || r == recvEOF }

// closeState says which of the two users have the stream open.
type closeState uint8

const (
	connOpening    closeState = iota + 1 // ours; the peer's listener has not answered
	connOpen                             // both
	connPeerClosed                       // ours: the peer takes nothing more
	connClosed                           // the peer's
	connBothClosed                       // none
	connRemoved                          // none, and the peer's tables have forgotten it
)

type closeEvent uint8

const (
	evAccepted   closeEvent = iota // the peer's listener has taken the stream
	evUserClosed                   // Close, or Open was given up
	evPeerClosed                   // Fin with FlagClosed, Reset, or the peer's end
	evRemoved                      // neither side can have anything in flight
)

var closeMoves = moves[closeState, closeEvent]{
	// A Fin may overtake the Accept, and says as much.
	connOpening:    {evAccepted: connOpen, evUserClosed: connClosed, evPeerClosed: connPeerClosed, evRemoved: connRemoved},
	connOpen:       {evUserClosed: connClosed, evPeerClosed: connPeerClosed, evRemoved: connRemoved},
	connPeerClosed: {evUserClosed: connBothClosed, evRemoved: connRemoved},
	connClosed:     {evPeerClosed: connBothClosed, evRemoved: connRemoved},
	connBothClosed: {evRemoved: connRemoved},
	connRemoved:    {},
}

// grantState is how a stream stands to a landing ring of the peer's.
type grantState uint8

const (
	grantNone      grantState = iota
	grantAsking               // the next data frame is going to ask for one
	grantAsked                // that, or a Want frame, has
	grantRecalled             // it was revoked before it came
	grantHeld                 // it is here
	grantReturning            // it was revoked: it goes back when no write is in flight
)

// writerState is where a stream's writer stands among those of its peer.
type writerState uint8

const (
	writerFree    writerState = iota // it waits for nothing that others could take
	writerBlocked                    // it waits, in peer.blocked
	writerAwake                      // it was woken from there, and is not back yet
)

// readerState is what a stream's reader is at.
type readerState uint8

const (
	readerFree        readerState = iota
	readerCopies                  // from the landing ring, without the lock
	readerShut                    // CloseRead: what arrives is dropped
	readerShutsCopies             // CloseRead, while it copies
)

func (r readerState) copies() bool { return r == readerCopies || r == readerShutsCopies }

func (r readerState) shut() bool { return r == readerShut || r == readerShutsCopies }
