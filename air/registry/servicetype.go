// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"net/url"
	"strings"

	"github.com/fivewire/fivewire/air"
)

// A ServiceType is the parsed name of a service in a DID document (section 12).
type ServiceType struct {
	Reserved string // the reserved prefix it begins with: A2A, AIR or DIDComm; or ""
	URI      bool   // an absolute https URL, as third parties should use
}

// ErrBadServiceType is the code of the error for an empty service type.
const ErrBadServiceType air.Code = "bad_service_type"

// ParseServiceType parses the name of a service. The error for an empty one is [ErrBadServiceType].
func ParseServiceType(name string) (ServiceType, error) {
	if name == "" {
		return ServiceType{}, air.Errorf(ErrBadServiceType, "empty")
	}
	var st ServiceType
	for _, prefix := range []string{"A2A", "AIR", "DIDComm"} {
		if strings.HasPrefix(name, prefix) {
			st.Reserved = prefix
		}
	}
	if u, err := url.Parse(name); err == nil && u.Scheme == "https" && u.Host != "" {
		st.URI = true
	}
	return st, nil
}
