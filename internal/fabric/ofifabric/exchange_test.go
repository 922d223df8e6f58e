//go:build linux && cgo

package ofifabric_test

import (
	"bytes"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed202c38ff/fabricnet/internal/fabric"
	"github.com/seed202c38ff/fabricnet/pool"
)

func TestSendAndInject(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *side) {
		out, in := mapped(t, 4096), mapped(t, 4096)
		sent, received := a.register(out, pool.AccessLocal), b.register(in, pool.AccessLocal)
		copy(out, "a message that is sent")
		recv := fabric.Op{Kind: fabric.Recv, Buf: in[:2048], Desc: received.Desc(), Tag: 7}
		b.post(a, recv)
		a.post(b, fabric.Op{Kind: fabric.Send, To: a.peer, Buf: out[:22], Desc: sent.Desc(), Tag: 9})

		c := b.await(a, fabric.Recv)
		require.NoError(t, c.Err)
		assert.EqualValues(t, 7, c.Tag)
		assert.Equal(t, "a message that is sent", string(in[:c.Len]))
		c = a.await(b, fabric.Send)
		require.NoError(t, c.Err)
		assert.EqualValues(t, 9, c.Tag)

		// After the call, Inject does not use the memory any more.
		recv.Tag = 8
		b.post(a, recv)
		text := outside(t, "a message that is injected")
		a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: text})
		clear(text)
		c = b.await(a, fabric.Recv)
		require.NoError(t, c.Err)
		assert.EqualValues(t, 8, c.Tag)
		assert.Equal(t, "a message that is injected", string(in[:c.Len]))
		assert.Empty(t, a.got, "an inject has no completion")
	})
}

func TestInjectSizes(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *side) {
		limit := a.Attr().InjectSize
		require.Positive(t, limit)
		in := mapped(t, 1<<16)
		region := b.register(in, pool.AccessLocal)
		for _, size := range []int{1, limit} {
			text := mapped(t, size)
			rand.Read(text)
			b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in, Desc: region.Desc()})
			a.post(b, fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: text})
			c := b.await(a, fabric.Recv)
			require.NoError(t, c.Err)
			require.True(t, bytes.Equal(text, in[:c.Len]))
		}
		n, _, err := a.Exchange([]fabric.Op{{Kind: fabric.Inject, To: a.peer, Buf: mapped(t, limit+1)}}, nil)
		assert.Zero(t, n)
		assert.Error(t, err)
	})
}

func TestWrite(t *testing.T) {
	const size = 64 << 10
	eachProvider(t, func(t *testing.T, a, b *side) {
		from, to := mapped(t, size), mapped(t, 2*size)
		source, target := a.register(from, pool.AccessLocal), b.register(to, pool.AccessRemoteWrite)
		write := fabric.Op{
			To: a.peer, Buf: from, Desc: source.Desc(),
			Remote: target.Base() + size/2, Key: target.Key(),
		}

		rand.Read(from)
		write.Kind, write.Tag, write.Data = fabric.WriteData, 3, 0xfedcba98
		if a.Attr().CQDataSize >= 8 {
			write.Data = 0xfedcba9876543210
		}
		require.True(t, a.Attr().DeliveryComplete)
		for _, write.Deliver = range []bool{false, true} {
			if a.Attr().CQDataSize < 4 {
				break
			}
			rand.Read(from)
			write.Tag++
			a.post(b, write)
			c := b.await(a, fabric.RemoteWrite)
			require.NoError(t, c.Err)
			assert.Equal(t, write.Data, c.Data)
			require.True(t, bytes.Equal(from, to[size/2:size/2+size]), "the data come before the notification")
			c = a.await(b, fabric.WriteData)
			require.NoError(t, c.Err)
			assert.Equal(t, write.Tag, c.Tag)
		}

		rand.Read(from)
		write.Kind, write.Tag, write.Deliver = fabric.Write, 4, true
		a.post(b, write)
		c := a.await(b, fabric.Write)
		require.NoError(t, c.Err)
		assert.EqualValues(t, 4, c.Tag)
		require.True(t, bytes.Equal(from, to[size/2:size/2+size]), "the data come before the completion")
		b.poll()
		assert.Empty(t, b.got, "a plain write is not notified")

		require.NotZero(t, a.Attr().Order&fabric.SendAfterWrite)
		in := mapped(t, 4096)
		slot := b.register(in, pool.AccessLocal)
		note := fabric.Op{Kind: fabric.Inject, To: a.peer, Buf: outside(t, "landed")}
		for range 100 {
			rand.Read(from)
			write.Tag, write.Deliver = 5, false
			b.post(a, fabric.Op{Kind: fabric.Recv, Buf: in[:64], Desc: slot.Desc()})
			a.post(b, write, note)
			require.NoError(t, b.await(a, fabric.Recv).Err)
			require.True(t, bytes.Equal(from, to[size/2:size/2+size]), "the data come before a send")
			require.NoError(t, a.await(b, fabric.Write).Err)
		}
	})
}
