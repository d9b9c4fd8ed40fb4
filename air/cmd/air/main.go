// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Command air makes keys, signs, verifies, seals and opens envelopes, verifies transcripts, probes
// peers, sends and receives envelopes as an agent, and serves a relay. Each verb has its own help: air sign -h.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/hook"
	"github.com/fivewire/fivewire/air/internal/name"
	"github.com/fivewire/fivewire/air/probe"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/air/transcript"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/store"
)

func main() { program.Main() }

const (
	pushVariable  = "AIR_PUSH_SECRET"
	inboxVariable = "AIR_INBOX_SECRET"
)

var program = &command.Command{
	Name:    "air",
	Summary: "Works with the signed envelopes of AIR.",
	Verbs: []command.Verb{
		{
			Name: "key", Arguments: "[-did DID] FILE", Prepare: prepareKey,
			Summary:  "Writes the name and the public key of an identity; with -did, makes it.",
			Examples: "air key -did did:wba:agentidentityregistry.org:agents:AIR-A11C-E000-0001 alice.json\nair key alice.json",
		},
		{
			Name: "sign", Arguments: "-key FILE [flags] [ENVELOPE]", Prepare: prepareSign,
			Summary:  "Signs an envelope of a profile and writes its canonical form.",
			Examples: "air sign -key alice.json offer.json",
		},
		{
			Name: "verify", Arguments: "[flags] [ENVELOPE]", Prepare: prepareVerify,
			Summary:  "Verifies the signature of an envelope with a key, a DID document, or the registry.",
			Examples: "air sign -key alice.json offer.json | air verify -public z6Mk...\nair verify -document alice-did.json offer.json",
		},
		{
			Name: "seal", Arguments: "-public KEY [ENVELOPE]", Prepare: prepareSeal,
			Summary:  "Encrypts the body of an unsigned envelope for its recipient.",
			Examples: "air seal -public z6Mk... offer.json | air sign -key alice.json",
		},
		{
			Name: "open", Arguments: "-key FILE [ENVELOPE]", Prepare: prepareOpen,
			Summary:  "Decrypts the body of an envelope, without verifying its signature.",
			Examples: "air open -key bob.json sealed.json",
		},
		{
			Name: "transcript", Arguments: "[-profile PROFILE] [FILE]", Prepare: prepareTranscript,
			Summary:  "Verifies the transcript of a thread without a network and writes what it proves.",
			Examples: "air transcript deal.json",
		},
		{
			Name: "probe", Arguments: "[flags] DID | -envelope FILE", Prepare: prepareProbe,
			Summary:  "Finds what the inbox of an agent speaks, or why an envelope would not verify elsewhere. Delivers nothing.",
			Examples: "air probe -key alice.json did:wba:agentidentityregistry.org:agents:AIR-B0B0-0000-0002\nair probe -envelope offer.json",
		},
		{
			Name: "send", Arguments: "-key FILE [flags] DID [BODY]", Prepare: prepareSend,
			Summary:  "Signs the body of a file, or of standard input, and delivers it to the inbox of an agent.",
			Examples: `echo '{"type":"Decline"}' | air send -key alice.json -thread ID -reply-to ID did:wba:...` + "\nair send -key alice.json -seal did:wba:... offer.json",
		},
		{
			Name: "pull", Arguments: "-key FILE [flags]", Prepare: preparePull,
			Summary:  "Receives envelopes from the relay of the own document, one line for each.",
			Examples: "air pull -key bob.json -o json\nair pull -key bob.json -relay https://relay.example/inbox/AIR-B0B0-0000-0002 -once",
		},
		{
			Name: "relay", Arguments: "[flags]", Prepare: prepareRelay,
			Summary:  "Serves a relay until it is interrupted.",
			Examples: "air relay -addr localhost:8080 -any-recipient",
		},
	},
}

func keyFlag(fs *flag.FlagSet) *string {
	return fs.String("key", "", "`file` of the identity, made by air key")
}

func loadKey(file string) (*air.Identity, error) {
	if file == "" {
		return nil, command.Usage("-key is missing")
	}
	id, err := air.LoadIdentity(file)
	return id, command.CouldNot(err)
}

func prepareKey(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	did := fs.String("did", "", "make an identity with this `DID`; the file must not exist")
	return func(_ context.Context, s *command.IO, args []string) error {
		file, err := command.One(args, "the name of the file", false)
		if err != nil {
			return err
		}
		var id *air.Identity
		if *did == "" {
			if id, err = loadKey(file); err != nil {
				return err
			}
		} else if id, err = makeKey(file, *did); err != nil {
			return err
		}
		out := struct {
			DID       string `json:"did"`
			PublicKey string `json:"publicKeyMultibase"`
		}{id.DID(), id.PublicKey().String()}
		return s.Print(out.DID+" "+out.PublicKey, out)
	}
}

func makeKey(file, did string) (*air.Identity, error) {
	if _, err := os.Lstat(file); err == nil {
		return nil, command.CouldNot(fmt.Errorf("%s exists", file))
	}
	if _, ok := name.ParseDID(did); !ok {
		return nil, command.Usage("-did: not the DID of an agent: %q", did)
	}
	id, err := air.GenerateIdentity(did)
	if err != nil {
		return nil, command.CouldNot(err)
	}
	return id, command.CouldNot(air.SaveIdentity(file, id))
}

// status marks an error for which the registry, a relay or the network is the reason. Others refuse an envelope.
func status(err error) error {
	refused, ok := errors.AsType[*air.Error](err)
	if !ok || slices.Contains([]air.Code{air.ErrBadGateway, air.ErrResolveFailed, air.ErrDeliveryFailed}, refused.Code) {
		return command.CouldNot(err)
	}
	return err
}

// A choice is a flag with one of some values.
type choice[T ~string] struct {
	value *T
	among []T
}

func (c choice[T]) String() string {
	if c.value == nil {
		return ""
	}
	return string(*c.value)
}

func (c choice[T]) Set(text string) error {
	if !slices.Contains(c.among, T(text)) {
		return fmt.Errorf("want one of %q", c.among)
	}
	*c.value = T(text)
	return nil
}

// choiceFlag defines a flag that has one of the values.
func choiceFlag[T ~string](fs *flag.FlagSet, name string, value T, usage string, others ...T) *T {
	fs.Var(choice[T]{&value, append(others, value)}, name, usage)
	return &value
}

func profileFlag(fs *flag.FlagSet) *air.Profile {
	return choiceFlag(fs, "profile", air.ProfileInterop, "`profile` of the fields: spec, interop or deployed", air.ProfileSpec, air.ProfileDeployed)
}

// readInput reads the file that the only argument names.
func readInput(ctx context.Context, s *command.IO, args []string) ([]byte, error) {
	file, err := command.One(args, "", true)
	if err != nil {
		return nil, err
	}
	return s.Read(ctx, file)
}

// readEnvelope reads the envelope that the only argument names.
func readEnvelope(ctx context.Context, s *command.IO, args []string, profile air.Profile) (*air.Envelope, error) {
	data, err := readInput(ctx, s, args)
	if err != nil {
		return nil, err
	}
	return decodeEnvelope(data, profile)
}

func decodeEnvelope(data []byte, profile air.Profile) (*air.Envelope, error) {
	return air.DecodeEnvelope(data, &air.DecodeOptions{Profile: profile, BodyTypes: []string{air.AnyBodyType}})
}

func prepareSign(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	key := keyFlag(fs)
	form := choiceFlag(fs, "form", air.FormSpec, "`form` of the signature: spec or deployed", air.FormDeployed)
	profile := profileFlag(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		id, err := loadKey(*key)
		if err != nil {
			return err
		}
		data, err := readInput(ctx, s, args)
		if err != nil {
			return err
		}
		signed, err := air.Sign(data, id.Signer(), *form)
		if err == nil {
			_, err = decodeEnvelope(signed, *profile) // as its recipient does
		}
		if err != nil {
			return err
		}
		return s.Print(string(signed), json.RawMessage(signed))
	}
}

// summary is what is printed of an envelope.
type summary struct {
	ID       string          `json:"id"`
	From     string          `json:"from"`
	To       string          `json:"to"`
	Thread   string          `json:"threadId"`
	Type     string          `json:"type"`
	Form     air.Form        `json:"form,omitempty"`
	IsSealed bool            `json:"isSealed,omitempty"`
	Body     json.RawMessage `json:"body,omitempty"`
}

func (e *summary) String() string {
	bodyType := e.Type
	if strings.ContainsFunc(bodyType, func(r rune) bool { return r == ' ' || r == '"' || !unicode.IsPrint(r) }) {
		bodyType = strconv.Quote(bodyType) // the sender chooses it
	}
	text := fmt.Sprintf("%s %s from %s in thread %s", bodyType, e.ID, e.From, e.Thread)
	if e.Form != "" {
		text += fmt.Sprintf(", signed in form %s", e.Form)
	}
	if len(e.Body) > 0 {
		text += ": " + string(e.Body)
	}
	return text
}

func summarize(e *air.Envelope) *summary {
	return &summary{ID: e.ID, From: e.From, To: e.To, Thread: e.ThreadID, Type: e.Type}
}

func prepareVerify(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	public := fs.String("public", "", "public `key` of the sender, in multibase")
	document := fs.String("document", "", "`file` with the DID document of the sender")
	accept := choiceFlag(fs, "accept", "", "`form` of the signature: spec or deployed, both if empty", air.FormSpec, air.FormDeployed)
	profile := profileFlag(fs)
	network := networkFlags(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		e, err := readEnvelope(ctx, s, args, *profile)
		if err != nil {
			return err
		}
		key, err := senderKey(ctx, s, e.From, *public, *document, network)
		if err != nil {
			return err
		}
		out := summarize(e)
		if out.Form, err = e.Verify(key, *accept); err != nil {
			return err
		}
		return s.Print(out.String(), out)
	}
}

// senderKey returns the key of a flag, of a document, or of the registry.
func senderKey(ctx context.Context, s *command.IO, did, public, document string, network *network) (*air.PublicKey, error) {
	switch {
	case public != "" && document != "":
		return nil, command.Usage("-public and -document exclude one another")
	case public != "":
		key, err := air.ParsePublicKey(public)
		if err != nil {
			return nil, command.Usage("-public: %w", err)
		}
		return key, nil
	case document != "":
		data, err := s.Read(ctx, document)
		if err != nil {
			return nil, err
		}
		doc, err := air.DecodeDocument(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", document, err)
		}
		return doc.SigningKey(did)
	}
	resolver, err := network.resolver()
	if err != nil {
		return nil, err
	}
	defer resolver.Close()
	doc, err := resolver.Resolve(ctx, did)
	if err != nil {
		return nil, status(err)
	}
	return doc.SigningKey(did)
}

func prepareTranscript(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	profile := profileFlag(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		data, err := readInput(ctx, s, args)
		if err != nil {
			return err
		}
		t, err := transcript.Decode(data)
		if err != nil {
			return err
		}
		r, err := t.Verify(&air.DecodeOptions{Profile: *profile, BodyTypes: []string{air.AnyBodyType}})
		if err != nil {
			return err
		}
		out := struct {
			Thread   string              `json:"threadId"`
			State    air.ThreadState     `json:"state"`
			Agreed   string              `json:"agreed,omitempty"`
			Messages int                 `json:"messages"`
			Sealed   int                 `json:"sealed"`
			Keys     map[string][]string `json:"keys"`
		}{Thread: r.ThreadID, State: cmp.Or(r.Thread.State, air.ThreadPending), Messages: len(r.Envelopes), Sealed: r.Sealed, Keys: r.Keys}
		if r.Thread.State == air.ThreadAccepted {
			out.Agreed = r.Thread.Agreed.String()
		}
		text := fmt.Sprintf("%d messages in thread %s, %d sealed: %s %s", out.Messages, out.Thread, out.Sealed, out.State, out.Agreed)
		text = strings.TrimSpace(text)
		for _, did := range slices.Sorted(maps.Keys(r.Keys)) {
			text += "\n" + did + " " + strings.Join(r.Keys[did], " ")
		}
		return s.Print(text, out)
	}
}

func prepareProbe(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	network := networkFlags(fs)
	key := fs.String("key", "", "`file` of a registered identity; finds the forms of signatures that an inbox accepts")
	bodyTypes := fs.String("bodies", "", "body `types` to try, separated by commas")
	envelope := fs.String("envelope", "", "`file` of an envelope to look at, - for the standard input")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if *envelope != "" {
			return lint(ctx, s, *envelope, args)
		}
		did, err := command.One(args, "the DID of an agent", false)
		if err != nil {
			return err
		}
		o := &probe.Options{AllowLoopback: network.allowLocal, AllowPrivate: network.allowLocal}
		if *bodyTypes != "" {
			o.BodyTypes = strings.Split(*bodyTypes, ",")
		}
		if *key != "" {
			if o.Identity, err = loadKey(*key); err != nil {
				return err
			}
		}
		if o.Resolver, err = network.resolver(); err != nil {
			return err
		}
		defer o.Resolver.Close()
		r, err := probe.Probe(ctx, did, o)
		if err != nil {
			return status(err)
		}
		text := fmt.Sprintf("%s at %s, dialects %v, forms %v, key %s", r.Kind, r.Endpoint, r.Dialects, r.Forms, r.Key)
		return s.Print(strings.Join(append([]string{text}, r.Advice...), "\n"), r)
	}
}

// lint prints the findings in an envelope and fails if there are any.
func lint(ctx context.Context, s *command.IO, file string, args []string) error {
	if len(args) > 0 {
		return command.Usage("-envelope and a DID exclude one another")
	}
	data, err := s.Read(ctx, file)
	if err != nil {
		return err
	}
	findings := probe.Lint(data, time.Now())
	for _, f := range findings {
		if err := s.Print(f.String(), f); err != nil {
			return err
		}
	}
	if len(findings) > 0 {
		return fmt.Errorf("%d findings", len(findings))
	}
	return nil
}

func prepareSeal(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	public := fs.String("public", "", "public `key` of the recipient, in multibase")
	return func(ctx context.Context, s *command.IO, args []string) error {
		key, err := air.ParsePublicKey(*public)
		if err != nil {
			return command.Usage("-public: %w", err)
		}
		e, err := readEnvelope(ctx, s, args, air.ProfileInterop)
		if err != nil {
			return err
		}
		if e.Signature != "" {
			return air.Errorf(air.ErrAlreadySigned, "the envelope has a signature")
		}
		sealed, err := air.Seal(key, air.Binding{ID: e.ID, From: e.From, To: e.To, ThreadID: e.ThreadID}, e.BodyJSON())
		if err != nil {
			return err
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(e.Bytes(), &members); err != nil {
			return err
		}
		members["body"] = sealed
		data, err := json.Marshal(members)
		if err != nil {
			return err
		}
		return s.Print(string(data), json.RawMessage(data))
	}
}

func prepareOpen(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	file := keyFlag(fs)
	return func(ctx context.Context, s *command.IO, args []string) error {
		id, err := loadKey(*file)
		if err != nil {
			return err
		}
		e, err := readEnvelope(ctx, s, args, air.ProfileInterop)
		if err != nil {
			return err
		}
		body, err := id.Open(e)
		if err != nil {
			return err
		}
		return s.Print(string(body), json.RawMessage(body))
	}
}

// network holds the flags of connections to a registry or a relay.
type network struct {
	registry   string
	allowLocal bool
}

func networkFlags(fs *flag.FlagSet) *network {
	n := &network{}
	fs.StringVar(&n.registry, "registry", air.DefaultRegistryURL, "base `URL` of the registry")
	fs.BoolVar(&n.allowLocal, "allow-local", false, "connect to loopback and private addresses, too")
	return n
}

func (n *network) resolver() (*air.Resolver, error) {
	r, err := air.NewResolver(&air.ResolverOptions{RegistryURL: n.registry, AllowLoopback: n.allowLocal, AllowPrivate: n.allowLocal})
	if err != nil {
		return nil, command.Usage("-registry: %w", err)
	}
	return r, nil
}

func prepareSend(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	key, network := keyFlag(fs), networkFlags(fs)
	seal := fs.Bool("seal", false, "encrypt the body for the recipient")
	thread := fs.String("thread", "", "`ID` of the thread; a new one without it")
	reply := fs.String("reply-to", "", "`ID` of the envelope that this one answers")
	secret := fs.String("secret-file", "", "`file` with the secret of the relay; without it, the variable "+pushVariable)
	timeout := fs.Duration("timeout", time.Minute, "longest time, with all attempts")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) == 0 || len(args) > 2 {
			return command.Usage("want the DID of the recipient, and at most one file")
		}
		id, err := loadKey(*key)
		if err != nil {
			return err
		}
		body, err := s.Read(ctx, append(args, "-")[1])
		if err != nil {
			return err
		}
		push, err := command.Secret(*secret, pushVariable)
		if err != nil {
			return err
		}
		resolver, err := network.resolver()
		if err != nil {
			return err
		}
		defer resolver.Close()
		client, err := air.NewClient(id, &air.ClientOptions{Resolver: resolver, Secrets: func(string) string { return push }, BodyTypes: []string{air.AnyBodyType}})
		if err != nil {
			return command.CouldNot(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		draft := &air.Draft{To: args[0], ThreadID: *thread, InReplyTo: *reply, Body: &air.Raw{JSON: body}}
		receipt, err := client.Send(ctx, draft, &air.SendOptions{Seal: *seal})
		if err != nil {
			return status(err)
		}
		out := struct {
			ID       string `json:"id"`
			Thread   string `json:"threadId"`
			Status   int    `json:"status"`
			Attempts int    `json:"attempts"`
		}{receipt.Envelope.ID, receipt.Envelope.ThreadID, receipt.Status, receipt.Attempts}
		return s.Print(fmt.Sprintf("delivered %s in thread %s", out.ID, out.Thread), out)
	}
}

func preparePull(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	key, network := keyFlag(fs), networkFlags(fs)
	relayURL := fs.String("relay", "", "`URL` of the mailbox; without it, that of the own document")
	dialect := choiceFlag(fs, "dialect", air.DialectSpec, "`dialect` of the relay: spec or deployed", air.DialectDeployed)
	secret := fs.String("secret-file", "", "`file` with the secret of the mailbox; without it, the variable "+inboxVariable+", or signed requests")
	once := fs.Bool("once", false, "end when the mailbox is empty")
	maxAge := fs.Duration("max-age", 0, "accept mail of this `age`, up to 720h; older mail stays at the relay (default 5m)")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) > 0 {
			return command.Usage("%q: one argument too many", args[0])
		}
		id, err := loadKey(*key)
		if err != nil {
			return err
		}
		agentSecret, err := command.Secret(*secret, inboxVariable)
		if err != nil {
			return err
		}
		resolver, err := network.resolver()
		if err != nil {
			return err
		}
		defer resolver.Close()
		if *relayURL == "" {
			doc, err := resolver.Resolve(ctx, id.DID())
			if err != nil {
				return status(err)
			}
			endpoint, err := doc.Inbox(id.DID(), &air.EndpointOptions{AllowLoopback: network.allowLocal, AllowPrivate: network.allowLocal})
			if err != nil {
				return err
			}
			*relayURL = endpoint.URL
		}
		log := slog.New(slog.NewTextHandler(s.Err, nil))
		opts := &air.InboxOptions{Resolver: resolver, BodyTypes: []string{air.AnyBodyType}, Logger: log}
		hook.IgnoreThreads(opts)
		if *maxAge != 0 {
			opts.Timing.MaxPullAge, opts.Persistence.Store = *maxAge, pullStore{store.NewMemory()}
		}
		inbox, err := air.NewInbox(id, printer(s), opts)
		if err != nil {
			return command.CouldNot(err)
		}
		defer inbox.Close()
		poller, err := air.NewPoller(inbox, *relayURL, &air.PollerOptions{
			Dialect: *dialect, AgentSecret: agentSecret, AllowLoopback: network.allowLocal, AllowPrivate: network.allowLocal, Logger: log,
		})
		if err != nil {
			return command.Usage("-relay: %w", err)
		}
		defer poller.Close()
		if *once {
			return drain(ctx, poller)
		}
		if err := poller.Run(ctx); ctx.Err() == nil {
			return status(err)
		}
		return nil
	}
}

// drain empties a mailbox. A call of Drain that ends at a limit returns no delay.
func drain(ctx context.Context, p *air.Poller) error {
	for {
		delay, err := p.Drain(ctx)
		if err != nil || delay > 0 {
			return status(err)
		}
	}
}

// A pullStore is the memory of a pull. It takes no dead letters, which would end with the process: their mail stays at
// the relay.
type pullStore struct{ store.Store }

// Create stores a value unless it is that of a dead letter.
func (s pullStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.Contains(key, "/dead/") {
		return 0, fmt.Errorf("%w: no place for dead letters", store.ErrInvalid)
	}
	return s.Store.Create(ctx, key, value, ttl)
}

// printer prints what is received, one envelope at a time.
func printer(s *command.IO) air.Handler {
	turn := make(chan struct{}, 1)
	return air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		turn <- struct{}{}
		defer func() { <-turn }()
		out := summarize(d.Envelope)
		out.Form, out.IsSealed, out.Body = d.Form, d.Sealed, d.BodyJSON
		if d.Sealed {
			out.Type = air.BodyType(d.Body)
		}
		return s.Print(out.String(), out)
	})
}

func prepareRelay(fs *flag.FlagSet) func(context.Context, *command.IO, []string) error {
	network, serve := networkFlags(fs), command.NewServeFlags(fs)
	publicURL := fs.String("public-url", "", "origin and path prefix for callers, behind a proxy that changes them")
	pushSecret := fs.String("push-secret-file", "", "`file` with the secret of senders; without it, the variable "+pushVariable+", or none")
	boxSecret := fs.String("inbox-secret-file", "", "`file` with the secret of all mailboxes; without it, the variable "+inboxVariable+", or signed requests only")
	anyRecipient := fs.Bool("any-recipient", false, "accept mail for every agent of agentidentityregistry.org, without the registry")
	return func(ctx context.Context, s *command.IO, args []string) error {
		if len(args) > 0 {
			return command.Usage("%q: one argument too many", args[0])
		}
		push, err := command.Secret(*pushSecret, pushVariable)
		if err != nil {
			return err
		}
		box, err := command.Secret(*boxSecret, inboxVariable)
		if err != nil {
			return err
		}
		resolver, err := network.resolver()
		if err != nil {
			return err
		}
		defer resolver.Close()
		opts := &relay.ServerOptions{
			Auth: relay.Auth{
				PushSecret: push, AllowAnonymousPush: push == "", InboxSecret: func(string) string { return box },
				Resolver: resolver, PublicURL: *publicURL,
			},
			AnyRecipient: *anyRecipient,
			Logger:       slog.New(slog.NewTextHandler(s.Err, nil)),
		}
		if !*anyRecipient {
			opts.Directory = relay.NewRegistryDirectory(resolver)
		}
		mailboxes, err := relay.NewServer(opts)
		if err != nil {
			return command.CouldNot(err)
		}
		srv := &http.Server{Handler: mailboxes, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
		return serve.Serve(ctx, s, srv, mailboxes.Shutdown)
	}
}
