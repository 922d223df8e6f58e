package doctor

import (
	"fmt"
	"path"
	"strings"
)

const classInfiniband = "sys/class/infiniband"

// rdmaDevices returns a finding for each port of each RDMA device and one for the device files, or a
// single one if there is no device.
func rdmaDevices(m *Machine) (list []Finding) {
	devices := m.names(classInfiniband)
	if len(devices) == 0 {
		f := Finding{Check: "RDMA devices", Found: "none in /" + classInfiniband}
		if m.hasHardware() {
			return []Finding{f} // the device is in a class of its own
		}
		f.Found += ": conns to other hosts need a software provider, named on both sides, or plain TCP"
		if m.exists("sys/module/rdma_rxe") {
			f.Advice = "Soft-RoCE is loaded: rdma link add rxe0 type rxe netdev <interface> makes a device of an interface."
		} else {
			f.Advice = "To try one without hardware: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev <interface>."
		}
		return []Finding{f}
	}
	for _, d := range devices {
		for _, port := range m.names(path.Join(classInfiniband, d, "ports")) {
			list = append(list, m.port(d, port))
		}
	}
	return append(list, m.deviceFiles(devices))
}

// port checks one port of a device.
func (m *Machine) port(device, port string) Finding {
	dir := path.Join(classInfiniband, device, "ports", port)
	f := Finding{Check: "RDMA port " + device + "/" + port}
	state, ok := m.text(path.Join(dir, "state")) // "4: ACTIVE"
	if !ok {
		f.Verdict, f.Found = Unknown, "it has no state"
		return f
	}
	_, name, _ := strings.Cut(state, ": ")
	layer, _ := m.text(path.Join(dir, "link_layer"))
	rate, _ := m.text(path.Join(dir, "rate"))
	gids, netdev, ip := m.gids(dir)
	f.Found = fmt.Sprintf("%s, %s, %s, %d GIDs", name, layer, rate, gids)
	if netdev != "" {
		f.Found += ", of " + netdev
	}
	switch {
	case name != "ACTIVE" && layer == "Ethernet":
		f.Verdict, f.Advice = Warn, "Bring its network interface up (ip link set "+orWord(netdev, "<interface>")+" up), and look at the cable and the switch."
	case name != "ACTIVE":
		f.Verdict, f.Advice = Warn, "Look at the cable and the switch, and whether a subnet manager runs (opensm); ibstat has details."
	case gids == 0:
		f.Verdict, f.Advice = Warn, "It has no GID: give its network interface an address."
	case layer == "Ethernet" && !ip:
		f.Verdict, f.Advice = Warn, "Give "+orWord(netdev, "its network interface")+" an IP address: connections over RoCE are made by IP address."
	}
	return f
}

// gids counts a port's addresses (GIDs). netdev is the network interface to which the first
// belongs; ip tells whether one of them is an IP address that is not link-local.
func (m *Machine) gids(dir string) (n int, netdev string, ip bool) {
	for _, i := range m.names(path.Join(dir, "gids")) {
		gid, ok := m.text(path.Join(dir, "gids", i))
		if !ok || strings.Trim(gid, "0:") == "" || gid == "fe80:0000:0000:0000:0000:0000:0000:0000" {
			continue
		}
		n++
		ip = ip || !strings.HasPrefix(gid, "fe80:")
		if netdev == "" {
			netdev, _ = m.text(path.Join(dir, "gid_attrs/ndevs", i))
		}
	}
	return n, netdev, ip
}

// deviceFiles checks the files by which programs reach the devices. Containers have to be given
// them.
func (m *Machine) deviceFiles(devices []string) Finding {
	f := Finding{Check: "RDMA device files", Found: "/dev/infiniband can be used"}
	const advice = "Give the container the devices (docker --device=/dev/infiniband), or load the modules ib_uverbs and rdma_ucm."
	var files []string
	for _, verbs := range m.names("sys/class/infiniband_verbs") {
		if _, ok := m.text(path.Join("sys/class/infiniband_verbs", verbs, "ibdev")); ok {
			files = append(files, verbs)
		}
	}
	if len(files) == 0 {
		f.Verdict, f.Advice = Fail, advice
		f.Found = fmt.Sprintf("no file leads to %s: ib_uverbs is not loaded", strings.Join(devices, ", "))
	}
	for _, name := range files {
		file := path.Join("dev/infiniband", name)
		if !m.exists(file) {
			f.Verdict, f.Found, f.Advice = Fail, "/"+file+" is missing", advice
			break
		}
		if err := m.Usable("/" + file); err != nil {
			f.Verdict, f.Found, f.Advice = Fail, "/"+file+": "+err.Error(), "Let this user read and write the files in /dev/infiniband (udev rules of rdma-core)."
			break
		}
	}
	const connections = "dev/infiniband/rdma_cm"
	if f.Verdict == OK && !m.exists(connections) {
		f.Verdict, f.Found, f.Advice = Warn, "/"+connections+" is missing, without which verbs;ofi_rxm makes no connections", advice
	}
	return f
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}
