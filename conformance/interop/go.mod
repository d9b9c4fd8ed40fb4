module github.com/fivewire/fivewire/conformance/interop

go 1.26.0

require (
	github.com/a2aproject/a2a-go/v2 v2.4.0
	github.com/fivewire/fivewire v0.0.0
	github.com/fivewire/fivewire/a2e/mcpbridge v0.0.0
	github.com/fivewire/fivewire/accp/a2abinding v0.0.0
	github.com/fivewire/fivewire/accp/mcpbinding v0.0.0
	github.com/fivewire/fivewire/accp/tokenizer v0.0.0
	github.com/fivewire/fivewire/arc/a2abridge v0.0.0
	github.com/fivewire/fivewire/arc/oauth v0.0.0
	github.com/modelcontextprotocol/go-sdk v1.8.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/text v0.43.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/a2aproject/a2a-go v0.3.15 // indirect
	github.com/coder/websocket v1.8.15 // indirect
	github.com/cyberphone/json-canonicalization v0.0.0-20241213102144-19d51d7fe467 // indirect
	github.com/fivewire/fivewire/a2e/mcpserver v0.0.0
	github.com/fivewire/fivewire/altar/mcpserver v0.0.0
	github.com/fivewire/fivewire/arc/mcpserver v0.0.0
	github.com/fivewire/fivewire/internal/jwt v0.0.0 // indirect
	github.com/fivewire/fivewire/internal/mcpserver v0.0.0 // indirect
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/google/jsonschema-go v0.4.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mr-tron/base58 v1.3.0 // indirect
	github.com/segmentio/asm v1.1.3 // indirect
	github.com/segmentio/encoding v0.5.4 // indirect
	github.com/yosida95/uritemplate/v3 v3.0.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260427160629-7cedc36a6bc4 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260427160629-7cedc36a6bc4 // indirect
	google.golang.org/grpc v1.82.1 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

tool (
	github.com/a2aproject/a2a-go/examples/helloworld/client
	github.com/a2aproject/a2a-go/examples/helloworld/server/jsonrpc
	github.com/a2aproject/a2a-go/v2/examples/helloworld/client
	github.com/a2aproject/a2a-go/v2/examples/helloworld/server/jsonrpc
	github.com/modelcontextprotocol/go-sdk/examples/client/listfeatures
	github.com/modelcontextprotocol/go-sdk/examples/server/everything
)
