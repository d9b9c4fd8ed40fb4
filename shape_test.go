// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fivewire_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shape has the common declarations of the protocol packages: fields of structs, types, functions, methods
// and texts of errors. The serving type is Server, its options are ServerOptions.
var shape = map[string]string{
	"ServerOptions.Auth":           "Auth",
	"ServerOptions.Limits":         "Limits",
	"ServerOptions.Timing":         "Timing",
	"ServerOptions.Persistence":    "Persistence",
	"ServerOptions.Logger":         "*slog.Logger",
	"ServerOptions.Audit":          "func(context.Context, *AuditRecord)",
	"ServerOptions.Middleware":     "[]Middleware",
	"ServerOptions.AllowedOrigins": "[]string",
	"ServerOptions.AllowedHosts":   "[]string",

	"ClientOptions.Interceptors":  "[]Interceptor",
	"ClientOptions.HTTPClient":    "*http.Client",
	"ClientOptions.AllowInsecure": "bool",
	"ClientOptions.Retry":         "*RetryPolicy",
	"ClientOptions.TokenSource":   "TokenSource",
	"ClientOptions.Logger":        "*slog.Logger",

	"Auth.Authenticator":  "Authenticator",
	"Auth.Authorizer":     "Authorizer",
	"Auth.AllowAnonymous": "bool",

	"Limits.MaxMemory": "int64", "Limits.MaxMemoryPerPrincipal": "int64", "Limits.MaxMemoryPerSession": "int64",
	"Limits.MaxStorage": "int64", "Limits.MaxStoragePerPrincipal": "int64", "Limits.MaxStoragePerSession": "int64",
	"Limits.MaxItems": "int64", "Limits.MaxItemsPerPrincipal": "int64", "Limits.MaxItemsPerSession": "int64",
	"Limits.MaxConcurrent": "int64", "Limits.MaxConcurrentPerPrincipal": "int64", "Limits.MaxConcurrentPerSession": "int64",
	"Limits.QueueLimit": "int64", "Limits.QueueLimitPerPrincipal": "int64", "Limits.QueueLimitPerSession": "int64",
	"Limits.MaxUnauthenticated": "int64", "Limits.MaxUnauthenticatedPerAddress": "int64",
	"Limits.RequestRate": "float64", "Limits.RequestBurst": "int", "Limits.MaxMessage": "int", "Limits.MaxOutput": "int",
	"Timing.ReadTimeout": "time.Duration", "Timing.WriteTimeout": "time.Duration",
	"Persistence.Store": "store.Store",

	"Principal.ID": "string", "Principal.Tenant": "string", "Principal.Claims": "map[string]any",
	"Principal.Expires": "time.Time",

	"AuditRecord.Seq": "uint64", "AuditRecord.Time": "time.Time", "AuditRecord.Principal": "string",
	"AuditRecord.Peer": "string", "AuditRecord.Operation": "string", "AuditRecord.Object": "string",
	"AuditRecord.Outcome": "string", "AuditRecord.Code": "string", "AuditRecord.Duration": "time.Duration",
	"AuditRecord.Bytes": "int64",

	"Usage.Resource": "string", "Usage.Scope": "string", "Usage.Used": "int64", "Usage.Limit": "int64",

	"RetryPolicy.MaxAttempts": "int", "RetryPolicy.Base": "time.Duration", "RetryPolicy.Max": "time.Duration",
	"RetryPolicy.MaxRetryAfter": "time.Duration",

	"Error.Code": "Code", "Error.Message": "string", "Error.Details": "json.RawMessage", "Error.Cause": "error",
	"Error.Remote": "bool",

	"Middleware":  "func(Handler) Handler",
	"Interceptor": "func(CallFunc) CallFunc",

	"NewServer":           "func(*ServerOptions) (*Server, error)",
	"APIKeyAuthenticator": "func(map[string]*Principal) (Authenticator, error)",
	"BearerAuthenticator": "func(TokenVerifier) Authenticator",
	"AuditLog":            "func(*slog.Logger) func(context.Context, *AuditRecord)",
	"Errorf":              "func(Code, string, ...any) *Error",
	"NewID":               "func() string",

	"Authenticator.Authenticate": "func(*http.Request) (*Principal, error)",
	"TokenVerifier.VerifyToken":  "func(context.Context, string) (*Principal, error)",
	"TokenSource.Token":          "func(context.Context) (string, error)",

	"Server.ServeHTTP": "func(http.ResponseWriter, *http.Request)",
	"Server.Shutdown":  "func(context.Context) error",
	"Server.Close":     "func() error",
	"Server.Ready":     "func() error",
	"Server.Usage":     "func() []Usage",
	"Client.Close":     "func() error",

	"ErrClosed":     "closed",
	"ErrTooLarge":   "too large",
	"ErrTruncated":  "truncated",
	"ErrSlowReader": "slow reader",
}

// serving has the name of the serving type of each package.
var serving = map[string]string{"arc": "Server", "a2e": "Host", "altar": "Host", "accp": "Server", "air": "Inbox"}

// declarations returns the declarations of a package in the form of shape.
func declarations(t *testing.T, pkg string) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pkg, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	d := &declared{pkg: pkg, list: map[string]string{}, name: regexp.MustCompile(`^` + serving[pkg] + `(Options)?$`)}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			d.add(decl)
		}
	}
	return d.list
}

type declared struct {
	pkg  string
	name *regexp.Regexp
	list map[string]string
}

func (d *declared) add(decl ast.Decl) {
	if f, ok := decl.(*ast.FuncDecl); ok {
		name := f.Name.Name
		if f.Recv != nil {
			name = strings.TrimPrefix(d.text(f.Recv.List[0].Type), "*") + "." + name
		} else if rest, ok := strings.CutPrefix(name, "New"); ok {
			name = "New" + d.rename(rest)
		}
		d.list[name] = d.text(f.Type)
		return
	}
	for _, spec := range decl.(*ast.GenDecl).Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			d.addType(d.rename(s.Name.Name), s.Type)
		case *ast.ValueSpec:
			for i, name := range s.Names {
				if i < len(s.Values) {
					d.list[name.Name] = strings.TrimSuffix(strings.TrimPrefix(firstString(s.Values[i]), d.pkg+": "), ": %w")
				}
			}
		}
	}
}

func (d *declared) addType(name string, expr ast.Expr) {
	var members *ast.FieldList
	switch x := expr.(type) {
	case *ast.StructType:
		members = x.Fields
	case *ast.InterfaceType:
		members = x.Methods
	default:
		d.list[name] = d.text(expr)
		return
	}
	for _, f := range members.List {
		for _, member := range f.Names {
			d.list[name+"."+member.Name] = d.text(f.Type)
		}
	}
}

// rename returns the common name of the serving type and its options.
func (d *declared) rename(name string) string { return d.name.ReplaceAllString(name, "Server$1") }

// text returns a type without names of parameters, with the common names.
func (d *declared) text(expr ast.Expr) string {
	ast.Inspect(expr, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.Ident:
			x.Name = d.rename(x.Name)
		case *ast.FuncType:
			x.Params = unnamed(x.Params)
			x.Results = unnamed(x.Results)
		}
		return true
	})
	var b bytes.Buffer
	err := printer.Fprint(&b, token.NewFileSet(), expr)
	if err != nil {
		return err.Error()
	}
	return b.String()
}

func unnamed(list *ast.FieldList) *ast.FieldList {
	if list == nil {
		return nil
	}
	out := &ast.FieldList{}
	for _, f := range list.List {
		for range max(1, len(f.Names)) {
			out.List = append(out.List, &ast.Field{Type: f.Type})
		}
	}
	return out
}

// firstString returns the first string literal of an expression, the text of an error.
func firstString(expr ast.Expr) (text string) {
	ast.Inspect(expr, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && text == "" && lit.Kind == token.STRING {
			text = strings.Trim(lit.Value, "`\"")
		}
		return text == ""
	})
	return text
}

// A difference is a part of shape that packages declare otherwise or not at all.
type difference struct {
	pkg    string
	names  *regexp.Regexp
	reason string // of the protocol; empty if there is none, so that the difference may go
}

func differs(pkg, names, reason string) difference {
	return difference{pkg, regexp.MustCompile(`^(` + names + `)$`), reason}
}

var differences = []difference{
	differs("accp", `NewServer`, "a server has an agent id"),
	differs("air", `NewServer`, "an inbox has one identity and one handler"),
	differs("altar", `NewServer`, "a host has a manifest of contracts"),

	differs("arc", `Authenticator\.Authenticate`, "requests also arrive without HTTP"),
	differs("a2e", `Authenticator\.Authenticate`, "the handshake has the token, not a request"),
	differs("air", `Auth\..*|APIKeyAuthenticator|Authenticator\..*|BearerAuthenticator|Principal\..*|TokenVerifier\..*|TokenSource\..*|`+
		`ClientOptions\.TokenSource`, "envelopes are signed"),
	differs("arc", `TokenSource\.Token`, "tokens are for a target agent"),
	differs("altar", `Principal\.Claims`, "claims of a security context are lists of strings"),

	differs("a2e", `ClientOptions\.(HTTPClient|AllowInsecure)`, "a client has a connection"),
	differs("altar", `ClientOptions\.(HTTPClient|AllowInsecure)`, "a client has a dialer"),
	differs("air", `ClientOptions\.AllowInsecure`, "the resolver has the rules for endpoints"),
	differs("a2e", `Server\.ServeHTTP|ServerOptions\.Allowed(Hosts|Origins)|Timing\.ReadTimeout`, "a host serves streams; HTTPHandler serves one over HTTP"),
	differs("a2e", `RetryPolicy\.MaxRetryAfter`, "no response has a delay"),
	differs("altar", `ServerOptions\.Middleware`, "a Runtime runs the handlers, not the host"),
	differs("air", `Interceptor`, "a client sends, and calls nothing"),

	differs("accp", `Limits\.MaxMessage`, "FrameLimits bound frames"),
	differs("air", `Limits\.MaxOutput|Timing\.WriteTimeout`, "responses of an inbox are short"),

	differs("arc", `NewID`, "an id is a JSON number or string"),
	differs("accp", `Error\.Details`, "details are params of a frame"),
	differs("altar", `Errorf`, "an error has a reason"),
	differs("air", `ErrTooLarge`, "the name is a code of the protocol"),
	differs("air", `ErrSlowReader`, "nothing is streamed"),
}

// reasonOf returns the reason of a difference.
func reasonOf(pkg, name string) (reason string, ok bool) {
	for _, d := range differences {
		if d.pkg == pkg && d.names.MatchString(name) {
			return d.reason, true
		}
	}
	return "", false
}

// The packages have one shape, but for the differences, which all exist.
func TestPackagesHaveOneShape(t *testing.T) {
	for pkg := range serving {
		got := declarations(t, pkg)
		for name, want := range shape {
			reason, isKnown := reasonOf(pkg, name)
			switch {
			case got[name] != want && !isKnown:
				t.Errorf("%s.%s: got %q, want %q", pkg, name, got[name], want)
			case got[name] == want && isKnown:
				t.Errorf("%s.%s: no difference, want one because %s", pkg, name, reason)
			}
		}
	}
}

// The program of examples/one-shape has the same parts for each protocol: options with the same fields, and a
// server with a handler, Ready and a function that shuts it down.
func TestOneProgramHasOneShape(t *testing.T) {
	for pkg := range serving {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("examples/one-shape", pkg+".go"), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		var parts []string
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "serve") {
				parts = append(parts, (&declared{name: regexp.MustCompile(`^$`)}).text(f.Type))
				parts = append(parts, literals(f.Body, serving[pkg])...)
			}
		}
		require.Equal(t, []string{
			"func(string, *slog.Logger) (*server, error)",
			"options Auth Logger Audit",
			"server handler Ready shutdown",
		}, parts, "%s", pkg)
	}
}

// literals describes the options of a serving type and the server in a function.
func literals(body ast.Node, serving string) (list []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch typ := lit.Type.(type) {
		case *ast.SelectorExpr:
			if typ.Sel.Name == serving+"Options" {
				list = append(list, "options "+commonFields(lit, serving))
			}
		case *ast.Ident:
			if typ.Name == "server" && len(lit.Elts) == 3 {
				list = append(list, "server handler "+lit.Elts[1].(*ast.SelectorExpr).Sel.Name+" shutdown")
			}
		}
		return true
	})
	return list
}

// commonFields returns the names of the fields in a literal that the packages have in common. The
// signatures of envelopes are the Auth of an inbox.
func commonFields(lit *ast.CompositeLit, serving string) string {
	var names []string
	if serving == "Inbox" {
		names = append(names, "Auth")
	}
	for _, e := range lit.Elts {
		name := e.(*ast.KeyValueExpr).Key.(*ast.Ident).Name
		if _, ok := shape["ServerOptions."+name]; ok {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// kitNames are in the test kit of each protocol.
var kitNames = []string{"NewPair", "PairOptions", "NewPeer", "PeerStep", "Receive", "Send", "Answer", "Cut", "Vector"}

// Each test kit has the same things, and a runnable example of a pair with faults and of a scripted peer.
func TestTestKitsAreAlike(t *testing.T) {
	for _, protocol := range protocols {
		dir := protocol + "/" + protocol + "test"
		list := map[string]bool{}
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, decl := range file.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					list[decl.Name.Name] = true
				case *ast.GenDecl:
					for _, spec := range decl.Specs {
						if spec, ok := spec.(*ast.TypeSpec); ok {
							list[spec.Name.Name] = true
						}
					}
				}
			}
		}
		for _, name := range append([]string{"ExampleNewPair", "ExampleNewPeer"}, kitNames...) {
			require.True(t, list[name], "%s has no %s", dir, name)
		}
	}
}
