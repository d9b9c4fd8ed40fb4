module github.com/fivewire/fivewire/altar/jwtauth

go 1.26.0

require (
	github.com/fivewire/fivewire v0.0.0
	github.com/fivewire/fivewire/internal/jwt v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/go-jose/go-jose/v4 v4.1.8 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
