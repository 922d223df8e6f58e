// Package rdmatest has what the tests of packages rdmanet and systemtest have in common: conns over each
// real provider, a check that nothing is left behind, processes that play a role, and the flags of
// make soak. It uses rdmanet's public interface only.
package rdmatest
