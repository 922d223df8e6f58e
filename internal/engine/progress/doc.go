// Package progress decides who polls a completion queue.
//
// libfabric's providers do nothing unless somebody polls. So one goroutine at a time owns
// the queue, polls it, and has whatever it finds dispatched, for everybody. The preferred
// owner is a goroutine that waits for its own conn: it polls for a bounded time, yielding
// after each poll, and then parks. learner.go finds out how long that time should be, and
// whether to poll at all. A queue that nobody owns is soon armed, if there is anything to be
// woken by: its wait fd, or the sleeping flag and the doorbell, then wake a goroutine in the
// background.
//
// # States
//
//	idle     nobody polls right now; the timer will look, or a goroutine that polls for others
//	         and has just yielded
//	armed    nobody polls; an arrival, or the end of one of our own operations, wakes the sleeper
//	         or rings the doorbell
//	owned    somebody polls, and leaves after one poll or two
//	driven   a goroutine that waits polls, until it is signalled or has spun enough
//	retired  nobody polls any more
//
// These are all the transitions, with the function that makes each of them, and why:
//
//	idle   -> owned    Acquire, called by drive, pollForOthers, look, tick, Settle, Drain, Retire
//	armed  -> owned    Acquire, called by the same except Settle, and by Disarm and arm; it takes
//	                   back a flag that says asleep
//	owned  -> driven   drive, if it may spin
//	owned  -> idle     Release; pollForOthers between two polls; look, if it found something;
//	                   Settle, to hand over to pollForOthers; arm, with nothing to be woken by
//	driven -> idle     Release, by a driver that was signalled: it is likely to be back within
//	                   microseconds; arm, with nothing to be woken by
//	owned  -> armed    arm; look, before the sleep; pollForOthers at its end
//	driven -> armed    arm, once polling was in vain
//	armed  -> idle     sleep, if the wait fd cannot be waited on: the timer polls
//	owned  -> retired  Retire
//
// Three more things have states of their own, independent of the queue's:
//
//   - The sleeper is the background goroutine of a queue with a wait fd. It is away or resting.
//     It goes on resting while others come and go, so that they need not wake it only to have it go
//     back to sleep. A resting sleeper may be deep: it no longer looks by itself, and has to be woken
//     for anything that the fd may not announce.
//   - The timer is off, set or slow. Slow means later than PollEvery: a goroutine that causes
//     something to happen which nothing will announce sets the timer anew.
//   - The Poller is over once Close or Retire has been called, and stays so. After that nothing in the
//     background begins to poll, and the queue is on its way to retired.
//
// # The way of an arrival on an armed queue
//
//	the fd wakes the sleeper               the doorbell's reader calls Doorbell
//	          |                                          |
//	look: Acquire, poll, dispatch                        |
//	          |                                          |
//	          +--> pollForOthers: polls on, yielding <---+
//	                    |                     |
//	          a waiter comes: drive      none does: arm
//	                    |
//	    signalled: Release, idle -> tick finds that nobody came back: arm
//	    in vain:   arm, park
//
// For a peer that is coming up, and has no doorbell yet, Expect has pollForOthers poll at once, and
// for longer.
//
// # What must hold
//
// TestMoves checks the table of transitions against the code, and TestModel the following, with
// calls, arrivals, refusals and hangs at random:
//
//   - One owner. Acquire is a compare-and-swap from idle or armed. From owned on only the owner
//     moves the state, and only the owner polls.
//   - No arrival is missed while a queue is being armed. With a doorbell, the side that arms sets its
//     flag, which is a full fence, polls once more, and only then sleeps; the side that posts fences,
//     and then looks at the flag (SPEC.md section 8). So one of the two sees what the other did. With a
//     wait fd, the poll and fi_trywait come within the netpoller's callback: see fabric.Waiter.
//   - An owner overlooks nothing when it leaves. A goroutine that finds the queue taken has first left
//     word, and fenced, before it looked at the state: a report (Note), a count of doorbells (Doorbell),
//     or of goroutines that want a turn (awaitTurn). The owner changes the state, and then looks for those.
//   - Nobody waits in vain. A goroutine parks only while another one owns the queue, or once that is
//     armed, left to the timer, or retired. Whoever polls signals all waits that its poll ends, and
//     offers the fabric again what it has refused.
//   - Nobody depends on an owner that hangs in a provider's call. A goroutine that finds the queue
//     taken parks, and is woken by the owner when it leaves (turn.go) or by what it waits for.
//   - A queue at rest is left alone. Once nothing comes or goes any more, only the wait fd or the
//     doorbell has it polled, and a heartbeat now and then, in case the fd has failed. With
//     Config.Ticks the sleeper looks all the same, and a queue with neither fd nor doorbell is polled
//     by the timer for as long as there are peers.
//
// One transition is a bet. An owner that leaves with what it came for is likely to be back soon, so it
// leaves the queue idle, and the timer arms it if nobody has come back.
package progress
