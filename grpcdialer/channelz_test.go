package grpcdialer_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/seed202c38ff/fabricnet/internal/testenv"
	"github.com/seed202c38ff/fabricnet/rdmanet"
)

// TestChannelz: fabric clients can ask a server about itself through channelz, which lists the
// addresses of all conns.
func TestChannelz(t *testing.T) {
	for _, provider := range testenv.Providers() {
		t.Run(provider, func(t *testing.T) {
			only, transport := []string{provider}, new(rdmanet.Transport)
			t.Cleanup(func() { assert.NoError(t, transport.Close()) })
			lc := rdmanet.ListenConfig{Providers: only, Transport: transport, AcceptTCP: true}
			l, err := lc.Listen(t.Context(), "rdma", testenv.Address())
			require.NoError(t, err)
			s := newServer()
			grpc_testing.RegisterBenchmarkServiceServer(s, whence{})
			service.RegisterChannelzServiceToServer(s)
			start(t, s, l)

			plain, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, plain.Close()) })
			_, err = grpc_testing.NewBenchmarkServiceClient(plain).UnaryCall(callContext(t), request(1))
			require.NoError(t, err)

			cc := dial(t, "rdma://"+l.Addr().String(), &rdmanet.Dialer{Providers: only, Transport: transport})
			_, err = grpc_testing.NewBenchmarkServiceClient(cc).UnaryCall(callContext(t), request(1))
			require.NoError(t, err)
			z := channelz.NewChannelzClient(cc)
			server := serverAt(t, z, l.Addr().String())
			listening, err := z.GetSocket(callContext(t), &channelz.GetSocketRequest{SocketId: server.GetListenSocket()[0].GetSocketId()})
			require.NoError(t, err)
			assert.Equal(t, l.Addr().String(), listening.GetSocket().GetRef().GetName())

			sockets, err := z.GetServerSockets(callContext(t), &channelz.GetServerSocketsRequest{ServerId: server.GetRef().GetServerId()})
			require.NoError(t, err)
			require.Len(t, sockets.GetSocketRef(), 2)
			remotes := make(map[string]bool)
			for _, ref := range sockets.GetSocketRef() {
				got, err := z.GetSocket(callContext(t), &channelz.GetSocketRequest{SocketId: ref.GetSocketId()})
				require.NoError(t, err)
				socket := got.GetSocket()
				assert.Positive(t, socket.GetData().GetStreamsStarted())
				assert.Positive(t, socket.GetData().GetMessagesReceived())
				tcp := socket.GetLocal().GetTcpipAddress()
				assert.Equal(t, l.Addr().String(), (&net.TCPAddr{IP: tcp.GetIpAddress(), Port: int(tcp.GetPort())}).String())
				tcp = socket.GetRemote().GetTcpipAddress()
				remotes[(&net.TCPAddr{IP: tcp.GetIpAddress(), Port: int(tcp.GetPort())}).String()] = true
			}
			assert.Len(t, remotes, 2)

			channel := channelTo(t, z, "rdma://"+l.Addr().String())
			assert.Positive(t, channel.GetData().GetCallsSucceeded())
			sub, err := z.GetSubchannel(callContext(t), &channelz.GetSubchannelRequest{SubchannelId: channel.GetSubchannelRef()[0].GetSubchannelId()})
			require.NoError(t, err)
			assert.Equal(t, l.Addr().String(), sub.GetSubchannel().GetData().GetTarget())
			require.Len(t, sub.GetSubchannel().GetSocketRef(), 1)
		})
	}
}

// serverAt finds the server that listens at address among those of the process.
func serverAt(t *testing.T, z channelz.ChannelzClient, address string) *channelz.Server {
	t.Helper()
	list, err := z.GetServers(callContext(t), new(channelz.GetServersRequest))
	require.NoError(t, err)
	for _, s := range list.GetServer() {
		for _, ref := range s.GetListenSocket() {
			if ref.GetName() == address {
				return s
			}
		}
	}
	require.FailNow(t, "channelz knows of no server at "+address)
	return nil
}

// channelTo finds the client of a target.
func channelTo(t *testing.T, z channelz.ChannelzClient, target string) *channelz.Channel {
	t.Helper()
	list, err := z.GetTopChannels(callContext(t), new(channelz.GetTopChannelsRequest))
	require.NoError(t, err)
	for _, c := range list.GetChannel() {
		if c.GetData().GetTarget() == target {
			return c
		}
	}
	require.FailNow(t, "channelz knows of no client of "+target)
	return nil
}
