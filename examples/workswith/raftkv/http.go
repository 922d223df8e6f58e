package main

import (
	"errors"
	"io"
	"net/http"

	"github.com/hashicorp/raft"
)

const maxValue = 1 << 20

func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader", n.serveLeader)
	mux.HandleFunc("GET /kv/{key}", n.serveGet)
	mux.HandleFunc("PUT /kv/{key}", n.servePut)
	return mux
}

// serveLeader answers with the address of the leader's HTTP.
func (n *node) serveLeader(w http.ResponseWriter, _ *http.Request) {
	leader, err := n.leader()
	if err != nil || leader == "" {
		http.Error(w, "no leader", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, leader)
}

// serveGet answers from this node's copy, which may be a moment behind the leader's.
func (n *node) serveGet(w http.ResponseWriter, r *http.Request) {
	value, ok := n.store.get(r.PathValue("key"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(value)
}

// servePut stores the body. Other nodes than the leader send the client there.
func (n *node) servePut(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err = n.put(r.PathValue("key"), value)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	leader, _ := n.leader()
	if !errors.Is(err, raft.ErrNotLeader) || leader == "" {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	http.Redirect(w, r, "http://"+leader+r.URL.RequestURI(), http.StatusTemporaryRedirect)
}
