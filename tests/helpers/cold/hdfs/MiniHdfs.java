import java.io.File;
import java.net.InetSocketAddress;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** One name node and one data node in this process; prints their ports, and runs until it is killed. */
public final class MiniHdfs {
  private MiniHdfs() {}

  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(arguments[0]).getAbsolutePath());
    settings.setInt("dfs.replication", 1);
    settings.setInt("dfs.namenode.handler.count", 4);
    settings.setInt("dfs.datanode.handler.count", 4);
    // A page of a listing: small, so that folders of the tests have several.
    settings.setInt("dfs.ls.limit", 20);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
    cluster.waitClusterUp();
    InetSocketAddress http = cluster.getNameNode().getHttpAddress();
    int data = cluster.getDataNodes().get(0).getInfoPort();
    System.out.println("ready " + cluster.getNameNodePort() + " " + http.getPort() + " " + data);
    System.out.flush();
    Thread.currentThread().join();
  }
}
