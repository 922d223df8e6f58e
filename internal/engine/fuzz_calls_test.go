package engine

// The local calls of a scene: what an application does with its conns to a hostile peer, without waiting.

// openTowards opens a conn to the hostile peer.
func (sc *scene) openTowards(*reader) {
	if len(sc.opens) >= 16 {
		return
	}
	if s, err := sc.bad.open(1); err == nil {
		sc.opens = append(sc.opens, s)
	}
}

// call calls f with one of the conns to the hostile peer, unless that conn is closed.
func (sc *scene) call(r *reader, f func(*scene, *reader, *stream)) {
	list := append(streamsOf(sc.conns), sc.opens...)
	if len(list) == 0 {
		return
	}
	if s := list[int(r.byte())%len(list)]; !s.closed() {
		f(sc, r, s)
		sc.c.flush()
	}
}

func (sc *scene) write(r *reader, s *stream) {
	if s.writeError() == nil && !s.opening() {
		writeSome(s, make([]byte, min(r.size(), 256<<10)))
	}
}

func (sc *scene) read(r *reader, s *stream) {
	b := make([]byte, min(r.size(), 64<<10))
	n, large := s.tryRead(b)
	if large == nil {
		if n == 0 && s.conn.readError() == nil { // a reader that waits for one frame
			s.direct, s.directN = b, 0
			sc.poll(sc.c, 1)
			s.direct, s.directN = nil, 0
		}
		return
	}
	s.copying = true // much can happen while it copies
	sc.c.copying++
	for range r.byte() % 4 {
		sc.poll(sc.c, 8)
	}
	if r.byte()%8 == 0 && !s.closed() {
		s.close()
	}
	n = copy(b, large)
	if sc.c.endCopying() {
		s.endCopy(n)
	}
}

// end ends one direction, or both.
func (sc *scene) end(r *reader, s *stream) {
	[]func(){func() { s.shutWrite(false) }, s.shutRead, s.close, s.abort}[r.byte()%4]()
}

// borrow is RecvBuffer.
func (sc *scene) borrow(_ *reader, s *stream) {
	if !s.segs.empty() && s.segs.front().large && len(sc.lent) < 64 {
		sc.lent = append(sc.lent, s.lend(s.segs.front().n))
	}
}

func (sc *scene) giveBack(r *reader) {
	if len(sc.lent) > 0 {
		i := int(r.byte()) % len(sc.lent)
		sc.lent[i].Release()
		sc.lent[i].Release() // does nothing
	}
}

// sendBuffer is AllocBuffer, and then SendBuffer as far as it gets without waiting.
func (sc *scene) sendBuffer(r *reader, s *stream) {
	n := min(r.size(), 256<<10)
	b, err := s.conn.AllocBuffer(n)
	if err != nil {
		return
	}
	if r.byte()%4 == 0 {
		b.Release()
		return
	}
	b.flying++
	defer b.done()
	mem := b.mem
	b.released, b.mem = true, nil
	s.conn.zeroCopy = true
	defer func() { s.conn.zeroCopy = false }()
	for len(mem) > 0 && s.writeError() == nil && !s.opening() {
		if s.copies() {
			k := writeSome(s, mem)
			if k == 0 {
				return
			}
			mem = mem[k:]
			continue
		}
		k := s.largeRoom(len(mem), s.mostAtOnce())
		if k == 0 {
			return
		}
		b.flying++
		s.post(source{mem: mem[:k], desc: b.desc, buf: b})
		mem = mem[k:]
	}
}

// writeSome writes as much of b as it can at once, as Conn.write does.
func writeSome(s *stream, b []byte) int {
	if s.copies() {
		if w := s.prepareCopy(len(b)); w.mem != nil {
			copy(w.mem, b)
			s.commitCopy(&w)
			return len(w.mem)
		}
		return s.writeFrames(b)
	}
	if src := s.prepareLarge(len(b)); src.mem != nil {
		copy(src.mem, b)
		if s.commitLarge(src, len(b)) {
			return len(src.mem)
		}
		s.p.c.stage.Put(src.slot)
		s.p.c.freed = true
		return 0
	}
	return s.writeFrames(b)
}
