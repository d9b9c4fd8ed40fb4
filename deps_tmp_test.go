package fivewire
import (
_ "filippo.io/edwards25519"
_ "github.com/coder/websocket"
_ "github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
_ "github.com/go-json-experiment/json"
_ "github.com/go-json-experiment/json/jsontext"
_ "github.com/google/jsonschema-go/jsonschema"
_ "github.com/mr-tron/base58"
_ "github.com/stretchr/testify/require"
_ "github.com/stretchr/testify/assert"
_ "go.uber.org/goleak"
_ "golang.org/x/crypto/chacha20poly1305"
_ "golang.org/x/sync/singleflight"
_ "golang.org/x/text/unicode/norm"
_ "golang.org/x/time/rate"
_ "pgregory.net/rapid"
)
