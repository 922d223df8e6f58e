// Package containers_test checks the manifest in this directory. It is a module of its own because
// Kubernetes' types are a large dependency.
package containers_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestManifest: each document parses as the kind that it claims to be, without unknown fields, and
// has what docs/containers.md calls necessary.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	documents := strings.Split(string(text), "\n---\n")
	require.Len(t, documents, 2)

	var pod corev1.Pod
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &pod))
	assert.Equal(t, "Pod", pod.Kind)
	require.NotNil(t, pod.Spec.ShareProcessNamespace)
	assert.True(t, *pod.Spec.ShareProcessNamespace)
	checkShm(t, pod.Spec)

	var set appsv1.DaemonSet
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &set))
	assert.Equal(t, "DaemonSet", set.Kind)
	assert.Equal(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	checkShm(t, set.Spec.Template.Spec)
	proxy := set.Spec.Template.Spec.Containers[0]
	assert.Contains(t, proxy.SecurityContext.Capabilities.Add, corev1.Capability("IPC_LOCK"))

	// The program has all flags that the manifest uses.
	flags, err := os.ReadFile("../../cmd/fabricnet/flags.go")
	require.NoError(t, err)
	for _, c := range append(pod.Spec.Containers, proxy) {
		if len(c.Args) == 0 {
			continue
		}
		assert.Equal(t, "proxy", c.Args[0])
		for _, arg := range c.Args[1:] {
			if name := regexp.MustCompile(`^-([a-z-]+)`).FindStringSubmatch(arg); name != nil {
				assert.Contains(t, string(flags), `"`+name[1]+`"`)
			}
		}
	}
}

// checkShm checks that all containers share one /dev/shm, in memory and with a limit.
func checkShm(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	var shm *corev1.EmptyDirVolumeSource
	for _, v := range spec.Volumes {
		if v.Name == "shm" {
			shm = v.EmptyDir
		}
	}
	require.NotNil(t, shm)
	assert.Equal(t, corev1.StorageMediumMemory, shm.Medium)
	assert.NotNil(t, shm.SizeLimit)
	require.NotEmpty(t, spec.Containers)
	for _, c := range spec.Containers {
		assert.Contains(t, c.VolumeMounts, corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"})
	}
}
