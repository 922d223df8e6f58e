// Package progress decides who polls a completion queue, and who sleeps.
//
// libfabric's providers do nothing unless somebody polls. So one goroutine at a time owns
// the queue, polls it, and has whatever it finds dispatched, for everybody. Of the goroutines that
// wait for their own conns, one leads: it polls for a while, if that pays (learner.go), and then sleeps
// on a bell, so that what comes for it wakes nobody else (lead.go). A bell is a FIFO that the peer
// writes to, with doorbells, or else the descriptor of the provider's wait object. Nobody is appointed:
// once a leader has what it waited for, whoever waits next leads. While nobody leads, a watcher sleeps
// on a bell of its own (arm.go). Both poll in the netpoller's callback, and wake only if there is more to do.
//
// # States
//
//	idle     nobody polls right now; a leader that has just polled is likely to be back soon
//	armed    nobody polls; an arrival, or the end of one of our own operations, wakes the leader, or the
//	         watcher if nobody leads; without bells, the timer polls
//	owned    somebody polls
//	retired  nobody polls any more
//
// These are all the transitions, with the functions that make them, and why:
//
//	idle  -> owned    Acquire, called by takeTurn, look, watch, abdicate, arm, tick, Settle, Drain, Retire
//	armed -> owned    Acquire, called by the same except Settle; it takes back a flag that says asleep or led
//	owned -> idle     Release, by a leader that was signalled while it polled, or has lost the lead; tick, if
//	                  such leaders keep coming by; Settle, for a goroutine that polls
//	owned -> armed    arm
//	owned -> retired  Retire
//
// Three more things have states of their own, independent of the queue's:
//
//   - There is a leader or none. A goroutine that waits leads if nobody else does, or if the one that
//     does is the watcher, which only polls for others, until something has come for it, or it is signalled by
//     others. While somebody else owns the queue, it waits for its turn.
//   - The timer is off, set or slow. Slow means later than PollEvery: a goroutine that causes
//     something to happen which nothing will announce sets the timer anew.
//   - The Poller is over once Close or Retire has been called, and stays so. After that nothing in the
//     background begins to poll, and the queue is on its way to retired.
//
// # The way of an arrival on an armed queue
//
//	somebody leads: its bell rings                         nobody does: the watcher's rings
//	           |                                                      |
//	look: poll, dispatch, armed                            watch: poll, dispatch, armed
//	           |                                                      |
//	nothing for it: it sleeps on                           polling pays: pollOn, until somebody
//	something for it: it leads no more, and returns        leads, or it was in vain
//	for others, and polling pays: it leads no more,
//	and parks; pollOn
//
// A leader that polls when something comes for it leaves the queue idle and the flag awake: a bet that
// somebody leads again soon. The timer arms the queue if not.
//
// # What must hold
//
// TestMoves checks the table of transitions against the code, and TestModel the following, with
// calls, arrivals, refusals, deadlines and hangs at random:
//
//   - One owner. Acquire is a compare-and-swap from idle or armed. From owned on only the owner
//     moves the state, and only the owner polls. One leader, and one goroutine on each bell.
//   - No arrival is missed while a queue is being armed. With doorbells, the side that arms sets its
//     flag, which is a full fence, polls once more, and only then sleeps; the side that posts fences,
//     and then looks at the flag (SPEC.md section 8). So one of the two sees what the other did. With a
//     wait object, fi_trywait comes within the netpoller's callback, too, which is when edges begin to
//     count; Watch tells the owner if something has come before the watcher's bell was on. A poll by others may
//     undo a leader's fi_trywait: whoever arms the queue after it wakes the leader.
//   - The flag does not go on saying led while nobody leads, nor is a wait object unwatched. A leader that
//     goes says asleep instead, once it is no leader any more, and an owner that says led then looks whether it
//     has gone. If a leader finds the flag awake as it goes, there is an owner, which may count on it: it
//     leaves word. An owner that says asleep though somebody has begun
//     to lead is put right by the leader, or else the watcher's bell wakes a goroutine that signals it.
//   - An owner overlooks nothing when it leaves. A goroutine that finds the queue taken has first left
//     word, and fenced, before it looked at the state: a report (Note), a word that the queue is to be armed
//     anew (watch, abdicate), or that it wants a turn (awaitTurn). The owner changes the state, and then
//     looks for those.
//   - Nobody waits in vain. A goroutine parks only while another one owns the queue or leads, or once it is
//     armed, left to the timer, or retired. Whoever polls signals all waits that its poll ends, and
//     offers the fabric again what it has refused.
//   - Nobody depends on an owner that hangs in a provider's call. A goroutine that finds the queue
//     taken parks, and is woken by the owner when it leaves (turn.go) or by what it waits for. A leader
//     that sleeps owns nothing.
//   - A queue at rest is left alone (nextLook). With doorbells there is no timer while the queue is armed,
//     unless the fabric has refused something. With a wait object the timer looks a few times after something
//     has come or gone, as for a lost edge, and once after a heartbeat. With Config.Ticks it goes on looking,
//     and a queue with neither is polled by the timer for as long as there are peers.
package progress
