// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// DefaultRegistryURL is the source of documents and the base of relative endpoints (3.3, 3.4).
const DefaultRegistryURL = "https://agentidentityregistry.org"

// maxDocument bounds a DID document (AIR-D09).
const maxDocument = 256 << 10

// documentURL returns the URL of an agent's document. An empty base means [DefaultRegistryURL].
func documentURL(base, airID string) (string, error) {
	if err := validateAIRID(airID); err != nil {
		return "", err
	}
	if base == "" {
		base = DefaultRegistryURL
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", ErrBadEndpoint.err("the base of the registry is not an absolute URL")
	}
	return strings.TrimSuffix(base, "/") + "/api/v1/agents/" + airID + "/did-document", nil
}

// A Document is a strictly parsed, immutable DID document.
type Document struct {
	ID string

	text  strictjson.Value
	inbox strictjson.Value           // the first service of type A2AInbox; nil if there is none
	key   func() (*PublicKey, error) // of the entry #key-1, parsed once
}

// DecodeDocument parses a DID document. The error is [ErrBadDocument] if it is not strict JSON, not
// an object, or larger than 256 KiB. The methods validate its content.
func DecodeDocument(data []byte) (*Document, error) {
	if len(data) > maxDocument {
		return nil, ErrBadDocument.err("the document is too large")
	}
	c := getScratch()
	defer putScratch(c)
	out, ok := c.AppendVerbatim(nil, data) // ids are compared byte for byte, so nothing may be composed
	if !ok || c.HasDuplicate || !c.IsObject {
		return nil, ErrBadDocument.err("the document is not a strict JSON object")
	}
	d := &Document{text: out}
	d.ID, _ = d.text.Get("id").Text()
	d.key = sync.OnceValues(d.parseKey)
	for s := d.text.Get("service").Elements(); s.Next(); {
		if t, ok := s.Value.Get("type").Text(); ok && t == name.ServiceInbox {
			d.inbox = s.Value
			break // the first service decides, even if it is invalid (AIR-017)
		}
	}
	return d, nil
}

// JSON returns the document with its members sorted.
func (d *Document) JSON() []byte { return append([]byte(nil), d.text...) }

// SigningKey returns the key that signs for did: that of the entry {did}#key-1. The error is
// [ErrNotFound] if the document is that of another agent or has no such entry, and [ErrBadKey] if
// the key of the entry is invalid (AIR-D31, AIR-D33).
func (d *Document) SigningKey(did string) (*PublicKey, error) {
	if d.ID != did || did == "" || d.key == nil {
		return nil, ErrNotFound.err("the document is that of another agent")
	}
	return d.key()
}

func (d *Document) parseKey() (*PublicKey, error) {
	for m := d.text.Get("verificationMethod").Elements(); m.Next(); {
		if id, ok := m.Value.Get("id").Text(); !ok || id != d.ID+"#key-1" && id != "#key-1" {
			continue
		}
		text, _ := m.Value.Get("publicKeyMultibase").Text()
		return ParsePublicKey(text)
	}
	return nil, ErrNotFound.err("the document has no entry #key-1")
}

// A Dialect selects the URLs and the response format of a relay (AIR-D60).
type Dialect string

// The dialects. The default is DialectSpec.
const (
	DialectSpec     Dialect = "spec"     // {endpoint}/pull and {endpoint}/ack
	DialectDeployed Dialect = "deployed" // /inbox/{r}, /pull/{r} and /ack/{r}
	DialectAuto     Dialect = "auto"     // DialectSpec until a pull is answered with 404
)

// An Endpoint is an agent's inbox with the URLs derived from it (AIR-D35).
type Endpoint struct {
	URL  string // envelopes are posted here
	Pull string
	Ack  string
}

// EndpointOptions adjusts the accepted addresses of an inbox (AIR-D34).
type EndpointOptions struct {
	// AllowLoopback accepts hosts of this machine, and plain http for them. It is
	// meant for tests.
	AllowLoopback bool

	// AllowPrivate accepts addresses that are not public, and names of closed networks.
	AllowPrivate bool

	// Dialect selects the form of Pull and Ack. Empty means DialectSpec.
	Dialect Dialect
}

// Inbox returns the inbox of the agent did. The error is [ErrNotFound] if the document is that of
// another agent, [ErrUnreachable] if it has no inbox, and [ErrBadEndpoint] if the address of the
// first inbox is not permitted.
func (d *Document) Inbox(did string, opts *EndpointOptions) (Endpoint, error) {
	if d.ID != did || did == "" {
		return Endpoint{}, ErrNotFound.err("the document is that of another agent")
	}
	if d.inbox == nil {
		return Endpoint{}, ErrUnreachable.err("the agent has no inbox (A2A-unreachable)")
	}
	text, ok := d.inbox.Get("serviceEndpoint").Text()
	if !ok {
		return Endpoint{}, ErrBadEndpoint.err("serviceEndpoint is not a string")
	}
	return parseEndpoint(text, opts)
}

// parseEndpoint validates the address of an inbox. A relative address is resolved against
// [DefaultRegistryURL]. The error is [ErrBadEndpoint].
func parseEndpoint(text string, opts *EndpointOptions) (Endpoint, error) {
	var o EndpointOptions
	if opts != nil {
		o = *opts
	}
	if err := checkWord("dialect", o.Dialect, DialectSpec, DialectDeployed, DialectAuto); err != nil {
		return Endpoint{}, ErrBadEndpoint.because("", err)
	}
	bad := func(why string) (Endpoint, error) { return Endpoint{}, ErrBadEndpoint.err(why) }
	ref, err := url.Parse(text)
	if err != nil || text == "" || strings.TrimSpace(text) != text {
		return bad("not a URL")
	}
	base, err := url.Parse(DefaultRegistryURL + "/")
	if err != nil {
		return bad("not a URL")
	}
	u, err := url.Parse(base.ResolveReference(ref).String()) // the authority of a reference without a scheme is checked now
	if err != nil {
		return bad("not a URL")
	}
	guard := netguard.Guard{AllowLoopback: o.AllowLoopback, AllowPrivate: o.AllowPrivate}
	if strings.ContainsRune(text, '#') {
		return bad("a fragment in the URL")
	}
	if err := guard.CheckURL(u, false); err != nil {
		return Endpoint{}, ErrBadEndpoint.because("address not allowed", err)
	}
	if isOddAddress(strings.TrimSuffix(u.Hostname(), ".")) {
		return bad("an address in another spelling")
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		return bad("neither https nor http")
	}
	e := Endpoint{URL: u.String()}
	e.Pull, e.Ack = withPath(u, "/pull"), withPath(u, "/ack")
	if o.Dialect == DialectDeployed {
		path := strings.TrimSuffix(u.EscapedPath(), "/")
		i := strings.LastIndexByte(path, '/')
		prefix, ok := "", false
		if i > 0 && i < len(path)-1 {
			prefix, ok = strings.CutSuffix(path[:i], "/inbox")
		}
		if !ok {
			return bad("the path does not end in /inbox/{recipient}")
		}
		e.Pull, e.Ack = setPath(u, prefix+"/pull"+path[i:]), setPath(u, prefix+"/ack"+path[i:])
	}
	return e, nil
}

// isOddAddress reports whether the last label of a host is a number although the host is not an address:
// systems take some of these for addresses (AIR-D34).
func isOddAddress(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	label, digits := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:]), "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, digits+"abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// withPath adds a segment to the path; one trailing slash is dropped before and
// the query is kept.
func withPath(u *url.URL, segment string) string {
	return setPath(u, strings.TrimSuffix(u.EscapedPath(), "/")+segment)
}

func setPath(u *url.URL, escaped string) string {
	v := *u
	v.RawPath = escaped
	if p, err := url.PathUnescape(escaped); err == nil {
		v.Path = p
	}
	return v.String()
}
