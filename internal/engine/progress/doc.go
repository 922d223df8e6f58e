// Package progress decides who polls a completion queue. libfabric's providers do
// nothing unless somebody polls, so one goroutine at a time owns the queue, polls it and
// has what it finds dispatched, to everybody. A goroutine that waits for its own conn is
// the owner of choice: it polls, yielding after each poll, for a bounded time, and then
// parks; learner.go finds out how long that should be, and whether it polls at all. A
// queue that nobody owns is armed: its wait fd, or the sleeping flag and the
// doorbell, wake a goroutine in the background.
//
// The states of a queue:
//
//	idle     nobody polls; the timer is going to look, or a goroutine that polls for others, and yields
//	armed    nobody polls; an arrival, or the end of an own operation, wakes the sleeper or
//	         rings the doorbell
//	owned    somebody polls, and leaves after one poll or two
//	driven   a goroutine that waits polls, until it is signalled or has spun enough
//	retired  nobody polls any more
//
// Who moves it, and why:
//
//	idle   -> owned    Acquire: drive, pollForOthers, look, tick, Disarm, Settle, Drain, Retire
//	armed  -> owned    Acquire: the same; a flag that says asleep is taken back
//	owned  -> driven   drive, which may spin
//	owned  -> idle     Release; pollForOthers between two polls; arm, with nothing to be woken by
//	driven -> idle     Release, by who has been signalled: it is likely to be back within microseconds
//	owned  -> armed    arm, and look before the sleep: an arrival is for whomever it wakes
//	driven -> armed    arm, once polling was in vain
//	armed  -> idle     sleep, if the wait fd cannot be waited on: the timer polls
//	owned  -> retired  Retire
//
// Three more things have states of their own, whatever the queue's. The sleeper, which is
// the background goroutine of a queue with a wait fd, is away or resting, and then perhaps
// deep: it does not look by itself any more, and is woken for what the fd may not tell of.
// It goes on resting while others come and go, so that they need not wake it only to have
// it go to sleep again. The timer is off, set or slow: slow is later than PollEvery, and
// whoever causes something to happen of which nobody is told sets it anew. And all of it is over, once: from then
// on nobody begins to poll.
//
// Once nothing comes or goes any more a queue is left alone: nothing but the wait fd or
// the doorbell has it polled, and a heartbeat now and then, should the fd have failed. A
// queue with neither is, as long as there are peers.
//
// Who finds the queue taken parks, since its owner may be in a call that hangs: turn.go.
//
// What happens to an arrival on an armed queue, once for all:
//
//	the fd wakes the sleeper                      the doorbell's reader calls Doorbell
//	look: Acquire, poll, dispatch                              |
//	          |                                                |
//	          +-----> pollForOthers: polls on for others, yielding <--+
//	                    |                     |
//	        a waiter comes: drive       none does: arm
//	                    |
//	    signalled: Release, idle -> tick finds that nobody came back: arm
//	    in vain:   arm, park
//
// For a peer that comes up, and has no doorbell yet, pollForOthers polls at once, and for longer: Expect.
//
// Arming is a flag, a full fence, one more poll, and only then sleep; who posts fences
// and looks at the flag. With a fd the poll and fi_trywait come within the netpoller's
// callback: see fabric.Waiter.
//
// An owner that leaves with what it came for is likely to be back soon, so the queue is
// then left unarmed, and the timer arms it if nobody has come back.
package progress
