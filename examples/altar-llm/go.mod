module github.com/fivewire/fivewire/examples/altar-llm

go 1.26.0

require (
	github.com/anthropics/anthropic-sdk-go v1.26.0
	github.com/fivewire/fivewire v0.0.0
	github.com/openai/openai-go/v3 v3.8.1
	github.com/stretchr/testify v1.12.1
	google.golang.org/genai v1.76.0
)
