package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/hashicorp/raft"
)

// store is raft.FSM: a node's copy of all keys and values.
type store struct {
	mu     sync.RWMutex
	values map[string][]byte
}

func newStore() *store { return &store{values: make(map[string][]byte)} }

// entry is what the log has of each put.
type entry struct {
	Key   string
	Value []byte
}

func encode(key string, value []byte) ([]byte, error) { return json.Marshal(entry{key, value}) }

func (s *store) get(key string) ([]byte, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, ok := s.values[key]
	return value, ok
}

// Apply takes over what most of the nodes have in their logs.
func (s *store) Apply(l *raft.Log) any {
	var e entry
	if err := json.Unmarshal(l.Data, &e); err != nil {
		panic(fmt.Sprintf("entry %d of the log: %v", l.Index, err)) // going on would lose it here only
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[e.Key] = e.Value
	return nil
}

// Snapshot returns a copy. The values are never changed, only replaced.
func (s *store) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return snapshot(maps.Clone(s.values)), nil
}

func (s *store) Restore(from io.ReadCloser) error {
	defer from.Close()
	values := make(map[string][]byte)
	if err := json.NewDecoder(from).Decode(&values); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = values
	return nil
}

type snapshot map[string][]byte

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (snapshot) Release() {}
