module github.com/seed202c38ff/fabricnet

go 1.25.0

// The oldest versions that work, so that no program has to upgrade because of this
// module: make test-deps tests them.
require (
	github.com/smallnest/ringbuffer v0.1.0
	golang.org/x/sys v0.22.0
	google.golang.org/grpc v1.66.0
)

// Only tests use these. Older testify panics where a CollectT fails.
require (
	github.com/coder/websocket v1.8.12
	github.com/stretchr/testify v1.10.0
	go.uber.org/goleak v1.2.0
	golang.org/x/net v0.26.0
	google.golang.org/protobuf v1.34.1
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/text v0.16.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240604185151-ef581f913117 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
