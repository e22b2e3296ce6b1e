package control
import ("testing";"log/slog";"time";"os";"strings";"syscall";"runtime/debug";"context";"fmt")
func rss() string { b,_:=os.ReadFile("/proc/self/status"); for _,l:=range strings.Split(string(b),"\n"){ if strings.HasPrefix(l,"VmRSS"){return l}}; return ""}
func cpu() time.Duration { var r syscall.Rusage; _=syscall.Getrusage(0,&r); return time.Duration(r.Utime.Nano()+r.Stime.Nano())}
func TestIdle(t *testing.T){
 if os.Getenv("IDLE")=="" {return}
 before:=rss()
 c0:=cpu(); t0:=time.Now()
 s,_:=StartServer(context.Background(),ServerConfig{Dir:os.Getenv("IDLE"),Name:"n",Token:"t",Logger:slog.New(slog.DiscardHandler)})
 fmt.Println("start",time.Since(t0),"cpu",cpu()-c0)
 p,_:=NewEtcd(EtcdConfig{Server:s,Logger:slog.New(slog.DiscardHandler)})
 fmt.Println(p.Bootstrap(context.Background(),Seed{ClusterID:"c",Shards:64,Store:"s1"}), time.Since(t0))
 fmt.Println(p.Register(context.Background(),Store{ClusterID:"c",UUID:"s1",Boots:uint64(time.Now().Unix()),BootID:"x"}))
 fmt.Println("registered", time.Since(t0))
 ctx,cancel:=context.WithCancel(context.Background())
 go p.Run(ctx)
 k:=NewKeeper(KeeperConfig{Plane:p,Granted:func(uint32,uint64){},Superseded:func(uint32,LeaderRecord){},Logger:slog.New(slog.DiscardHandler)})
 go k.Run(ctx)
 for i:=1;i<=64;i++{k.Acquire(uint32(i),uint64(time.Now().Unix()))}
 go p.WatchSettings(ctx,func(Setting){})
 go func(){for{p.Beat();time.Sleep(2*time.Second)}}()
 time.Sleep(5*time.Second); debug.FreeOSMemory()
 a:=cpu(); time.Sleep(30*time.Second); b:=cpu()
 fmt.Println("idle % of core", float64(b-a)/float64(30*time.Second)*100, before, "->", rss())
 cancel()
 t0=time.Now(); s.Close(); fmt.Println("close",time.Since(t0))
}
