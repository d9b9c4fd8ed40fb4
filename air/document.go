// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// DefaultRegistryURL is where documents come from and what relative endpoints are
// resolved against (3.3, 3.4).
const DefaultRegistryURL = "https://agentidentityregistry.org"

// Types of services in a DID document.
const (
	ServiceInbox      = "A2AInbox"      // names an agent's inbox
	ServiceTrustScore = "AIRTrustScore" // tells how far the registry trusts the agent
)

// maxDocument bounds a DID document (AIR-D09).
const maxDocument = 256 << 10

// DocumentURL returns where the document of an agent lives. An empty base means
// [DefaultRegistryURL].
func DocumentURL(base, airID string) (string, error) {
	if err := ValidateAIRID(airID); err != nil {
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

// A Document is a DID document, read strictly. It does not change.
type Document struct {
	ID string

	text  strictjson.Value
	inbox strictjson.Value // the first service of type A2AInbox; nil if there is none
}

// DecodeDocument reads a document. One that is not strict JSON, not an object, or
// larger than 256 KiB is [ErrBadDocument]; what it says is looked at by the
// methods.
func DecodeDocument(data []byte) (*Document, error) {
	if len(data) > maxDocument {
		return nil, ErrBadDocument.err("the document is too large")
	}
	c := getCanon()
	defer putCanon(c)
	c.verbatim = true // ids are compared byte for byte, so nothing may be composed
	out, ok := c.append(nil, data)
	if !ok || c.duplicate || !c.object {
		return nil, ErrBadDocument.err("the document is not a strict JSON object")
	}
	d := &Document{text: out}
	d.ID, _ = d.text.Get("id").Text()
	for s := d.text.Get("service").Elements(); s.Next(); {
		if t, ok := s.Value.Get("type").Text(); ok && t == ServiceInbox {
			d.inbox = s.Value
			break // the first, also when it turns out unusable (AIR-017)
		}
	}
	return d, nil
}

// JSON returns the document with its members sorted.
func (d *Document) JSON() []byte { return append([]byte(nil), d.text...) }

// SigningKey returns the key that signs for did: that of the entry {did}#key-1.
// The errors are [ErrNotFound] if the document is that of another agent or has no
// such entry, and [ErrBadKey] if the entry holds no usable key (AIR-D31, AIR-D33).
func (d *Document) SigningKey(did string) (*PublicKey, error) {
	if d.ID != did || did == "" {
		return nil, ErrNotFound.err("the document is that of another agent")
	}
	for m := d.text.Get("verificationMethod").Elements(); m.Next(); {
		if id, ok := m.Value.Get("id").Text(); !ok || id != did+"#key-1" && id != "#key-1" {
			continue
		}
		text, _ := m.Value.Get("publicKeyMultibase").Text()
		return ParsePublicKey(text)
	}
	return nil, ErrNotFound.err("the document has no entry #key-1")
}

// Service returns the address of the first service of a type, as it is published.
func (d *Document) Service(serviceType string) (endpoint string, ok bool) {
	for s := d.text.Get("service").Elements(); s.Next(); {
		if t, _ := s.Value.Get("type").Text(); t == serviceType && t != "" {
			return s.Value.Get("serviceEndpoint").Text()
		}
	}
	return "", false
}

// A Dialect is the way in which a relay's URLs and answers are made (AIR-D60).
type Dialect string

// The dialects. A client speaks DialectSpec unless an option says otherwise.
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

// EndpointOptions adjusts what an address of an inbox may be (AIR-D34).
type EndpointOptions struct {
	// AllowLoopback accepts hosts of this machine, and plain http for them. It is
	// meant for tests.
	AllowLoopback bool

	// AllowPrivate accepts literal addresses that are private, link-local,
	// unspecified or multicast.
	AllowPrivate bool

	// Dialect decides about Pull and Ack. Empty means DialectSpec.
	Dialect Dialect
}

// Inbox returns the inbox of the agent did. The errors are [ErrNotFound] if the
// document is that of another agent, [ErrUnreachable] if it names no inbox, and
// [ErrBadEndpoint] if the first one must not be used.
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
	return ParseEndpoint(text, opts)
}

// ParseEndpoint checks an address of an inbox. A relative one belongs to
// [DefaultRegistryURL]. The error is [ErrBadEndpoint].
func ParseEndpoint(text string, opts *EndpointOptions) (Endpoint, error) {
	var o EndpointOptions
	if opts != nil {
		o = *opts
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
	u := base.ResolveReference(ref)
	host := u.Hostname()
	loopback, private := hostKind(host)
	switch {
	case u.Opaque != "" || host == "":
		return bad("no host")
	case u.User != nil:
		return bad("user information in the URL")
	case strings.ContainsRune(text, '#'):
		return bad("a fragment in the URL")
	case loopback && !o.AllowLoopback:
		return bad("a loopback host")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback):
		return bad("not https")
	case private && !o.AllowPrivate:
		return bad("a private address")
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

// hostKind reports whether a host is of this machine, and whether it is a literal
// address that the public cannot reach.
func hostKind(host string) (loopback, private bool) {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true, false
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(host, "."))
	if err != nil {
		return false, false
	}
	a = a.Unmap()
	if a.IsLoopback() {
		return true, false
	}
	return false, a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() ||
		a.IsInterfaceLocalMulticast() || a.IsLinkLocalMulticast()
}

// isLoopbackAddr reports whether a network address is one of this machine.
func isLoopbackAddr(a net.Addr) bool {
	ap, err := netip.ParseAddrPort(a.String())
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
